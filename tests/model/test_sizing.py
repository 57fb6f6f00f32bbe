"""Sizes computed from a spec beside what the native decoder holds once it has loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from penstock.backends import load_backend
from penstock.core import KvGroup, KvSpec, Loaded
from penstock.engine.startup import build_executor
from penstock.model import ModelInfo, load_model
from penstock.model.sharding import Grid, plan_grid
from penstock.model.sizing import (
    Matrix,
    active_parameters,
    kv_spec,
    matrices,
    parameters,
    sequence_bytes,
    whole,
)
from penstock.model.spec import DecoderSpec, Experts
from tests.families import FAMILIES, GGUF_FAMILIES, GGUF_MAPPINGS, MAPPINGS
from tests.real_ranks import TINY, exact_config

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")


def stored_numbers(directory: Path) -> int:
    """All numbers of a checkpoint's tensors, from the headers."""
    total = 0
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes = (entry["shape"] for name, entry in header.items() if name != "__metadata__")
        total += sum(math.prod(shape) for shape in shapes)
    return total


def packed(spec: DecoderSpec, grid: Grid, rank: int, form: str) -> int:
    """Bytes of the matrices, as the decoder counts them: routers are never quantised."""
    return sum(
        matrix.packed("f32" if matrix.part == "router" else form)
        for matrix in matrices(spec, grid, rank)
        if matrix.part != "vectors"
    )


def assert_equal(info: ModelInfo, grid: Grid, rank: int, loaded: Loaded, form: str) -> None:
    number, block = 4 if form == "f32" else 2, loaded.kv_spec.block_size
    assert kv_spec(info.spec, grid, rank, block, number) == loaded.kv_spec
    assert packed(info.spec, grid, rank, form) == loaded.facts.weights_bytes


@pytest.mark.parametrize("family", FAMILIES + GGUF_FAMILIES + MAPPINGS + GGUF_MAPPINGS)
def test_weights_and_kv_are_those_of_the_loaded_decoder(family: str) -> None:
    info = load_model(TINY / family)
    for settings, form in (
        ({}, "f32"),
        ({"dtype": "auto", "quantization": "int8"}, "w8"),
        ({"dtype": "auto", "quantization": "int4"}, "w4"),
    ):
        backend = load_backend(exact_config(family, settings), info)
        loaded = Loaded(backend.facts, backend.kv_spec(), 0)
        assert_equal(info, plan_grid(info.spec, 1, 1), 0, loaded, form)


@pytest.mark.parametrize(
    ("form", "codes", "scales"),
    [
        ("w4", 256, 64),
        ("s4", 256, 32),
        ("z4", 256, 48),
        ("mx4", 256, 16),
        ("w8", 512, 32),
        ("bf16", 1024, 0),
        ("f32", 2048, 0),
    ],
)
def test_packed_sizes_are_those_of_the_kernels_layout(form: str, codes: int, scales: int) -> None:
    # 2 x 2 blocks of 16 outputs and 32 inputs, which packed.rs draws.
    assert Matrix("dense", "up", None, 17, 40).packed(form) == 4 * (codes + scales)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "tp", "pp", "by_experts"),
    [
        ("llama", 2, 2, False),
        ("gemma3", 2, 1, False),
        ("gptoss", 2, 1, False),
        ("mixtral", 2, 2, True),
        ("mixed", 3, 1, False),
    ],
)
def test_each_rank_holds_the_share_that_was_computed(
    family: str, tp: int, pp: int, by_experts: bool
) -> None:
    info = load_model(TINY / family)
    settings: dict[str, object] = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "quantization": "int8",
        "dtype": "auto",
    }
    grid = plan_grid(info.spec, tp, pp, by_experts=by_experts)
    executor = build_executor(exact_config(family, settings), info, grid)
    try:
        for rank, loaded in enumerate(executor.loaded):
            assert_equal(info, grid, rank, loaded, "w8")
    finally:
        executor.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_the_numbers_of_the_checkpoint(family: str) -> None:
    info = load_model(TINY / family)
    assert parameters(info.spec) == stored_numbers(TINY / family)


def test_ranks_hold_all_parameters_together() -> None:
    info = load_model(TINY / "mixtral")
    grid = plan_grid(info.spec, 2, 2, by_experts=True)
    split = sum(
        matrix.numbers
        for rank in range(grid.size)
        for matrix in matrices(info.spec, grid, rank)
        if matrix.part in ("experts", "head", "dense")
    )
    held = (m for m in whole(info.spec) if m.part in ("experts", "head", "dense"))
    assert split == sum(matrix.numbers for matrix in held)


def test_a_token_reads_the_experts_of_its_choice_only() -> None:
    info = load_model(TINY / "mixtral")
    form = info.spec.layers[0].feed_forward
    assert isinstance(form, Experts)
    one = 3 * info.spec.hidden * form.expert.intermediate * len(info.spec.layers)
    idle = (form.experts - form.experts_per_token) * one
    embedding = info.spec.hidden * info.spec.vocab
    assert parameters(info.spec) - active_parameters(info.spec) == idle + embedding


def test_a_window_bounds_the_keys_of_a_sequence() -> None:
    groups = (KvGroup((0, 2), 1000, None), KvGroup((1,), 100, 64))
    spec = KvSpec(16, groups)
    assert sequence_bytes(spec, 32) == 2 * 1100
    assert sequence_bytes(spec, 160) == 10 * 1000 + 4 * 100
