"""Checkpoints of 4-bit integers on the native decoder: answers are those of the dequantised
weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.llm import LLM, SamplingParams
from penstock.model.files import safetensors_header
from penstock.model.stand_in_tokenizer import write_stand_in
from tests.real_ranks import TINY, VOCAB

FAMILY, GROUP, LAST = "llama", 32, "_proj.weight"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column in each place of a word. Source: autoawq 0.2.9, gemm."""
IDS = list(range(1, 40))
Tensors = dict[str, np.ndarray]
Writer = Callable[[np.ndarray, np.ndarray], Tensors]
TYPES = {"float32": "F32", "float16": "F16", "uint32": "I32", "int32": "I32", "int64": "I64"}


def words(codes: np.ndarray) -> np.ndarray:
    """Eight codes of the last dimension in a word, the first in the lowest bits."""
    shifts = np.arange(8, dtype="u4") * 4
    return (codes.reshape(*codes.shape[:-1], -1, 8).astype("u4") << shifts).sum(-1, dtype="u4")


def packed(codes: np.ndarray, scales: np.ndarray) -> Tensors:
    shape = np.array(codes.shape, "i8")
    return {"weight_packed": words(codes), "weight_scale": scales, "weight_shape": shape}


def gptq(codes: np.ndarray, scales: np.ndarray) -> Tensors:
    (n, k), groups = codes.shape, scales.shape[1]
    return {
        "qweight": np.ascontiguousarray(words(codes).T),
        "qzeros": np.full((groups, n // 8), 0x77777777, "u4"),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": np.arange(k, dtype="i4") // GROUP,
    }


def awq(codes: np.ndarray, scales: np.ndarray) -> Tensors:
    (n, k), groups = codes.shape, scales.shape[1]
    ordered = codes.T.reshape(k, n // 8, 8)[:, :, AWQ_ORDER]
    return {
        "qweight": words(ordered.reshape(k, n)),
        "qzeros": np.full((groups, n // 8), 0x88888888, "u4"),
        "scales": np.ascontiguousarray(scales.T),
    }


LAYOUTS: Mapping[str, tuple[Writer, dict[str, Any]]] = {
    "compressed-tensors": (
        packed,
        {
            "format": "pack-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "group_size": GROUP},
                }
            },
        },
    ),
    "gptq": (gptq, {"bits": 4, "group_size": GROUP, "sym": True}),
    "awq": (awq, {"bits": 4, "group_size": GROUP}),
}


def read(file: Path) -> Tensors:
    data, found = file.read_bytes(), {}
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in safetensors_header(file).items():
        if name != "__metadata__":
            assert isinstance(entry, dict)
            assert entry["dtype"] == "F32"
            begin, end = entry["data_offsets"]
            numbers = np.frombuffer(data[start + begin : start + end], "<f4")
            found[name] = numbers.reshape(entry["shape"])
    return found


def write(directory: Path, tensors: Tensors, settings: dict[str, Any] | None) -> Path:
    shutil.copytree(TINY / FAMILY, directory)
    write_stand_in(directory, VOCAB)
    config = json.loads((directory / "config.json").read_text())
    if settings is not None:
        config["quantization_config"] = settings
        (directory / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, tensor in tensors.items():
        span = [at, at + tensor.nbytes]
        kind = TYPES[tensor.dtype.name]
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": span}
        at = span[1]
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(tensor.tobytes() for tensor in tensors.values())
    return directory


def quantised(tensors: Tensors, writer: Writer) -> tuple[Tensors, Tensors]:
    """The tensors with random codes for each projection, and with the numbers of these codes."""
    random = np.random.default_rng(5)
    stored, numbers = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(LAST):
            stored[name] = numbers[name] = tensor
            continue
        n, k = tensor.shape
        codes = random.integers(0, 16, (n, k), dtype="u1")
        scales = random.uniform(0.01, 0.04, (n, k // GROUP)).astype("f2")
        numbers[name] = (codes.astype("f4") - 8) * scales.astype("f4").repeat(GROUP, 1)
        module = name.removesuffix(".weight")
        stored |= {f"{module}.{key}": each for key, each in writer(codes, scales).items()}
    return stored, numbers


def answer(model: Path, **settings: Any) -> tuple[list[int], list[dict[int, float]]]:
    """Greedy tokens, and the log-probabilities of the prompt's alternatives."""
    llm = LLM(str(model), device="cpu", kv_cache_memory_bytes="4MiB", **settings)
    try:
        params = SamplingParams(
            temperature=0, max_tokens=8, ignore_eos=True, prompt_logprobs=5, detokenize=False
        )
        (found,) = llm.generate([IDS], params, use_tqdm=False)
    finally:
        llm.close()
    rows = [
        {token: each.logprob for token, each in row.items()} for row in found.prompt_logprobs[1:]
    ]
    return list(found.outputs[0].token_ids), rows


def off(got: list[dict[int, float]], truth: list[dict[int, float]]) -> float:
    pairs = zip(got, truth, strict=True)
    return max(abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys())


@pytest.mark.parametrize("method", LAYOUTS)
def test_answers_are_those_of_the_numbers(tmp_path: Path, method: str) -> None:
    writer, settings = LAYOUTS[method]
    tensors = read(TINY / FAMILY / "model.safetensors")
    stored, numbers = quantised(tensors, writer)
    codes = write(tmp_path / "codes", stored, {"quant_method": method, **settings})
    plain = write(tmp_path / "plain", numbers, None)
    truth = answer(plain, dtype="float32")
    assert answer(codes, quantization="none") == truth
    tokens, rows = answer(codes, quantization="none", tensor_parallel_size=2)
    assert tokens == truth[0]
    assert off(rows, truth[1]) < 1e-3
    # With codes as they are, inputs are rounded to 8 bits.
    assert off(answer(codes)[1], truth[1]) < 0.5
