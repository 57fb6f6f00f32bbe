"""Random weights: their numbers against the formats' definitions, their sizes against real
checkpoints, their answers on one rank against those on two.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock.backends import load_backend
from penstock.core import PenstockError
from penstock.engine.startup import read_model
from penstock.llm import LLM, SamplingParams
from penstock.model import ModelError, load_model
from penstock.model.dummy import Tensor, dummy_weights, write
from penstock.model.numbers import SPREAD_F8, code_scale, f8_e4m3, mxfp4_exponent
from penstock.model.stand_in_tokenizer import write_stand_in
from tests.families import FAMILIES
from tests.real_ranks import TINY, exact_config

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
ROWS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": ROWS}},
    "ignore": ["lm_head"],
}
CODED = {
    "llama": {"quantization_config": GPTQ},
    "qwen3moe": {"quantization_config": PACKED},
    "deepseek3": {"quantization_config": FP8},
    "gptoss": {"quantization_config": {"quant_method": "mxfp4"}, "intermediate_size": 64},
}
MODELS = [*((family, {}) for family in FAMILIES), *CODED.items()]
SPREAD = 0.05
IDS = list(range(1, 40))


@pytest.fixture
def bare(tmp_path: Path):
    """`bare(family, **members)`: a directory with this config.json and nothing else."""

    def make(family: str, **members: object) -> Path:
        directory = tmp_path / family
        directory.mkdir(exist_ok=True)
        config = json.loads((TINY / family / "config.json").read_text()) | members
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    return make


def written(tmp_path: Path, tensor: Tensor, seed: int = 0) -> bytes:
    with (tmp_path / "made").open("w+b") as file:
        write(file, {"one": tensor}, SPREAD, seed)
        file.seek(0)
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        assert header["one"]["data_offsets"] == [0, tensor.size]
        data = file.read()
    assert len(data) == tensor.size
    return data


def as_float32(dtype: str, data: bytes) -> np.ndarray:
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_matrices_are_normal_with_the_deviation_of_the_config(tmp_path: Path, dtype: str) -> None:
    numbers = as_float32(dtype, written(tmp_path, Tensor(dtype, (300, 1000))))
    assert abs(numbers.mean()) < SPREAD / 100
    assert numbers.std() == pytest.approx(SPREAD, rel=0.02)
    below = [(numbers < SPREAD * z).mean() for z in (-2, -1, 0, 1, 2)]
    assert below == pytest.approx([0.02275, 0.15866, 0.5, 0.84134, 0.97725], abs=0.01)


def test_codes_of_8_bits_are_numbers_with_a_known_deviation(tmp_path: Path) -> None:
    # From the table of OCP's 8-bit Floating Point specification.
    assert [f8_e4m3(code) for code in (0x7E, 0xFE, 0x38, 0x01, 0x08)] == [
        448,
        -448,
        1,
        2**-9,
        2**-6,
    ]
    codes = np.frombuffer(written(tmp_path, Tensor("F8_E4M3", (300, 1000))), "u1")
    values = np.array([f8_e4m3(code) for code in range(256)])[codes]
    assert not np.isnan(values).any()
    assert values.std() == pytest.approx(SPREAD_F8, rel=0.02)


def test_codes_in_words_are_equally_frequent(tmp_path: Path) -> None:
    codes = np.frombuffer(written(tmp_path, Tensor("I32", (300, 1000))), "u1")
    for half in (codes & 15, codes >> 4):
        assert np.bincount(half, minlength=16) == pytest.approx(codes.size / 16, rel=0.02)
    assert np.bincount(codes) == pytest.approx(codes.size / 256, rel=0.1)
    for bits in (4, 8):
        values = np.arange(2**bits) * code_scale(SPREAD, bits)
        assert values.std() == pytest.approx(SPREAD)


def test_mxfp4_scales_bring_codes_within_a_factor_of_the_deviation() -> None:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    for spread in (0.006, 0.02, 0.3):
        scaled = values * 2.0 ** (mxfp4_exponent(spread) - 127)
        ratio = math.sqrt((scaled**2).mean()) / spread
        assert 2**-0.51 < ratio < 2**0.51


def test_a_seed_decides_the_numbers(tmp_path: Path) -> None:
    tensor = Tensor("BF16", (40, 30))
    first, same, other = (written(tmp_path, tensor, seed) for seed in (1, 1, 2))
    assert first == same != other


def test_zeros_take_no_room(tmp_path: Path) -> None:
    written(tmp_path, Tensor("F32", (1 << 24,), bytes(4)))
    assert (tmp_path / "made").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(("family", "members"), MODELS)
def test_a_family_has_the_sizes_of_its_checkpoint_and_finite_answers(
    bare, family: str, members: dict[str, object]
) -> None:
    directory = bare(family, **members)
    if not members:
        settings = {"quantization": "int8", "dtype": "auto"}
        real = exact_config(family, settings)
        made = exact_config(str(directory), {**settings, "load_format": "dummy"})
        found = [load_backend(config, read_model(config)) for config in (real, made)]
        bytes_, groups = zip(*((b.facts.weights_bytes, b.kv_spec()) for b in found), strict=True)
        assert bytes_[0] == bytes_[1]
        assert groups[0] == groups[1]
        assert found[0].facts.fingerprint != found[1].facts.fingerprint
    llm = LLM(str(directory), load_format="dummy", device="cpu", kv_cache_memory_bytes="4MiB")
    try:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=5)
        (answer,) = llm.generate([IDS], params, use_tqdm=False)
    finally:
        llm.close()
    logprobs = [each.logprob for row in answer.outputs[0].logprobs for each in row.values()]
    assert len(answer.outputs[0].token_ids) == 6
    assert all(math.isfinite(each) for each in logprobs)
    assert max(logprobs) < -0.01, "a distribution, not one token"


@pytest.mark.heavy
@pytest.mark.parametrize("family", ["mixtral", "deepseek3"])
def test_two_ranks_have_the_weights_of_one(bare, family: str) -> None:
    found = []
    for ranks in (1, 2):
        llm = LLM(
            str(bare(family)),
            load_format="dummy",
            device="cpu",
            dtype="float32",
            kv_cache_memory_bytes="4MiB",
            tensor_parallel_size=ranks,
        )
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        found.append(llm.generate([IDS], params, use_tqdm=False)[0].outputs[0].token_ids)
        llm.close()
    assert found[0] == found[1]


def test_layers_share_a_file_of_bounded_size(bare) -> None:
    sizes = []
    for layers in (2, 20):
        info = load_model(bare("llama", num_hidden_layers=layers), dummy=True)
        with dummy_weights(info, 0) as made:
            sizes.append((Path(made.paths[0]) / "model.safetensors").stat().st_size)
            own = [made.weights.layers[i]["q"] for i in range(layers)]
        assert len({recipe.rows for recipe in own}) > layers // 2
    # Only the header differs, and not in its tensors.
    assert sizes[0] == sizes[1]


def test_nothing_is_left_of_the_weights(bare, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with dummy_weights(load_model(bare("qwen3"), dummy=True), 0) as made:
        assert os.listdir(temporary) == [Path(made.paths[0]).name]
    assert os.listdir(temporary) == []


def test_a_config_and_nothing_else_is_needed(bare) -> None:
    with pytest.raises(ModelError, match="the directory has no weights"):
        load_model(bare("qwen3"))
    with pytest.raises(ModelError, match="dummy weights need a directory"):
        load_model(TINY / "qwen3.gguf", dummy=True)


def test_the_own_tokenizer_is_used_where_there_is_one(bare) -> None:
    directory = bare("qwen3")
    write_stand_in(directory, 256)
    text = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(text.replace('"add_prefix_space": true', "false"))
    shutil.copy(directory / "tokenizer_config.json", directory / "other.json")
    with pytest.raises(PenstockError, match=r"tokenizer\.json"):
        LLM(str(directory), load_format="dummy", device="cpu")
