"""Cuts of decoders between ranks, against every other cut where there are few, and known cases."""

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import InvalidValueError
from penstock.model.sharding import COLUMN_UNIT, VOCAB_UNIT, plan_grid
from penstock.model.spec import DecoderSpec, Experts, Mlp, Router
from tests.fakes.models import dense_spec

SMOLLM2 = dense_spec(30, 576, 49152, 8192, (9, 3, 64), 1536)


def with_heads(heads: int, kv_heads: int, intermediate: int = 1536) -> DecoderSpec:
    return dense_spec(30, 576, 49152, 8192, (heads, kv_heads, 64), intermediate)


def sizes(cuts: tuple[int, ...]) -> list[int]:
    return [b - a for a, b in pairwise(cuts)]


def kv_heads(a: int, b: int, group: int) -> int:
    return len({head // group for head in range(a, b)})


def slowest(cuts: tuple[int, ...], group: int) -> int:
    return max(b - a + kv_heads(a, b, group) for a, b in pairwise(cuts))


def test_smollm2_over_two_ranks_has_the_middle_kv_head_twice() -> None:
    grid = plan_grid(SMOLLM2, 2, 1)
    assert sorted(sizes(grid.heads)) == [4, 5]
    assert [grid.kv_heads(rank, SMOLLM2) for rank in range(2)] == [2, 2]
    assert grid.mlp == ((0, 768, 1536),)
    assert grid.vocab == (0, 24576, 49152)


def test_the_head_counts_as_layers_of_the_last_stage() -> None:
    # A layer of SmolLM2 has 3.54 M weights, the head 28.3 M: eight layers' worth.
    assert plan_grid(SMOLLM2, 1, 2).layers == (0, 19, 30)
    assert sum(sizes(plan_grid(SMOLLM2, 1, 3).layers)) == 30


@pytest.mark.parametrize(
    ("heads", "kv", "tp", "most"),
    [(40, 8, 16, 3), (40, 40, 16, 3), (5, 5, 3, 2), (64, 8, 8, 8), (32, 2, 8, 4)],
)
def test_heads_that_do_not_divide_are_spread(heads: int, kv: int, tp: int, most: int) -> None:
    cuts = plan_grid(with_heads(heads, kv), tp, 1).heads
    assert max(sizes(cuts)) == most
    assert min(sizes(cuts)) >= 1


def test_even_groups_are_not_replicated() -> None:
    spec = with_heads(64, 8)
    grid = plan_grid(spec, 8, 1)
    assert [grid.kv_heads(rank, spec) for rank in range(8)] == [1] * 8


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_no_other_cut_of_the_heads_has_a_faster_slowest_rank(
    group: int, kv: int, data: st.DataObject
) -> None:
    heads = group * kv
    tp = data.draw(st.integers(1, min(heads, 4)))
    mine = plan_grid(with_heads(heads, kv), tp, 1).heads
    others = (slowest((0, *inner, heads), group) for inner in combinations(range(1, heads), tp - 1))
    assert slowest(mine, group) == min(others)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 200), st.integers(16, 500))
def test_every_part_is_there_once_and_none_is_empty(
    heads: int, tp: int, inner: int, vocab: int
) -> None:
    spec = replace(with_heads(heads, heads, inner), vocab=vocab)
    tp = min(tp, heads, inner)
    grid = plan_grid(spec, tp, min(3, len(spec.layers)))
    for cuts, whole in (
        (grid.heads, heads),
        (grid.mlp[0], inner),
        (grid.vocab, vocab),
        (grid.layers, 30),
    ):
        assert (cuts[0], cuts[-1]) == (0, whole)
        assert min(sizes(cuts)) >= 1
    if inner >= 32 * tp:
        assert all(cut % 32 == 0 for cut in grid.mlp[0][:-1])


def test_units_are_those_of_packed_weights(repository: Path) -> None:
    source = (repository / "crates/compute/kernels/src/packed.rs").read_text()
    assert f"pub const GROUP: usize = {COLUMN_UNIT};" in source
    assert f"pub const PANEL: usize = {VOCAB_UNIT};" in source


def test_shards_and_lines_of_a_grid() -> None:
    grid = plan_grid(SMOLLM2, 2, 2)
    assert (grid.size, grid.reader) == (4, 2)
    assert grid.shard(3)["rank"] == 1
    assert grid.shard(3)["stage"] == [1, 2]
    assert grid.shard(1)["layers"] == [0, 19]
    assert grid.describe(0, SMOLLM2).startswith("rank 0: layers 0-18, heads 0-")
    assert grid.describe(0, SMOLLM2).endswith("embedding")
    assert grid.describe(3, SMOLLM2).endswith("head")


def with_experts(spec: DecoderSpec, dense: int = 0) -> DecoderSpec:
    """Qwen3-30B-A3B's experts, but for the first `dense` layers."""
    mixture = Experts(128, 8, Mlp("gated", 768, "silu"), Router("softmax"))
    layers = [
        replace(layer, feed_forward=layer.feed_forward if i < dense else mixture)
        for i, layer in enumerate(spec.layers)
    ]
    return replace(spec, layers=tuple(layers))


def test_experts_are_cut_by_columns_or_whole() -> None:
    spec = with_experts(SMOLLM2, dense=1)
    grid = plan_grid(spec, 2, 1)
    assert grid.mlp == ((0, 384, 768), (0, 768, 1536))
    assert grid.experts is None
    assert "experts" not in grid.shard(1)
    whole = plan_grid(spec, 2, 1, by_experts=True)
    assert whole.experts == (0, 64, 128)
    assert whole.shard(1)["experts"] == [0, 64, 128]
    assert whole.describe(1, spec).endswith("experts 64-127, embedding, head")
    assert plan_grid(SMOLLM2, 2, 1, by_experts=True).experts is None


def test_layers_of_experts_cost_what_a_token_reads() -> None:
    # A dense layer reads 1536 inner columns, a mixture 8 times 768 of them.
    spec = with_experts(SMOLLM2, dense=20)
    assert plan_grid(replace(spec, vocab=2), 1, 2).layers == (0, 22, 30)


def test_more_ranks_than_heads_or_layers_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="--tensor-parallel-size is 10, expected 1 to 9"):
        plan_grid(SMOLLM2, 10, 1)
    with pytest.raises(InvalidValueError, match="--pipeline-parallel-size"):
        plan_grid(SMOLLM2, 1, 40)
    assert plan_grid(replace(SMOLLM2, layers=SMOLLM2.layers[:2]), 1, 3).layers[-1] == 2
