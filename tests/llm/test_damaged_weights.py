"""Weights that are not finite, and a hidden state that overflows: errors, never an answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

from penstock import LLM, SamplingParams
from penstock.core import PenstockError
from tests.e2e.test_tiny import write_tokenizer

NAN, LARGE = b"\xff\x7f", b"\x7f\x7f"
"""In bfloat16."""


@pytest.fixture
def tiny(repository: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    write_tokenizer(directory)
    return directory


def fill(directory: Path, name: str, value: bytes) -> None:
    """Write one value all over a tensor."""
    file = directory / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    data[8 + size + begin : 8 + size + end] = value * ((end - begin) // len(value))
    file.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight", "model.embed_tokens.weight"],
)
def test_a_tensor_that_is_not_finite_is_named(tiny: Path, name: str) -> None:
    fill(tiny, name, NAN)
    with pytest.raises(PenstockError, match=rf'tensor "{name}" .* not a number'):
        LLM(str(tiny))


def test_an_overflow_is_an_error_of_the_request(tiny: Path) -> None:
    for part in ("up", "down"):
        fill(tiny, f"model.layers.0.mlp.{part}_proj.weight", LARGE)
    llm = LLM(str(tiny), dtype="float32")
    try:
        with pytest.raises(PenstockError, match="for this request are infinite or not a number"):
            llm.generate([[5, 6, 7]], SamplingParams(temperature=0), use_tqdm=False)
    finally:
        llm.close()
