"""The bytes that are counted for a step are those of its tensors, at the sizes of real models too:
over meta tensors, which allocate as those of a GPU do.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from penstock.backends.torch.startup.memory import (
    allocated,
    graph_bytes,
    layer_bytes,
    step_bytes,
)
from tests.backends.torch.caching import Allocator, Block
from tests.backends.torch.startup.alive import StepMemory
from tests.backends.torch.startup.test_compiling import gpu
from tests.families import FAMILIES
from tests.real_ranks import TINY

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from benchmarks.gpu.shapes import SHAPES, write_checkpoint

__all__ = ["gpu"]

MIB = 1 << 20


def check(memory: StepMemory, most: float, more: int = 0) -> None:
    """Counted is what is alive, or up to `most` times as much and `more` bytes."""
    given = (memory.spec, memory.shard, memory.limits.tokens, memory.dtype)
    tables = 4 * memory.slots.entries
    layers, all_of_it = (memory.alive(draws=draws).most for draws in (False, True))
    for alive, counted in (
        (layers, layer_bytes(*given) + tables),
        (all_of_it, step_bytes(*given, tables)),
    ):
        print(f"{alive:,} bytes alive, {counted:,} counted: {counted / alive:.2f}")
        assert alive <= counted <= most * alive + more


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_each_family_takes_what_is_counted(family: str, dtype: torch.dtype) -> None:
    """The parts of split rows, which few rows have, are most of what tiny models take."""
    check(StepMemory(TINY / family, 512, 8, dtype), 1.15, 640 << 10)


@pytest.mark.parametrize("tokens", [2048, 8192])
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-30B-A3B"])
def test_a_step_of_a_real_size_takes_what_is_counted(
    name: str, tokens: int, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, SHAPES[name], 40960)
    check(StepMemory(tmp_path, tokens, 256, torch.bfloat16), 1.15)


def test_the_layers_of_a_step_take_what_an_h100_showed(tmp_path: Path) -> None:
    """844,369,920 bytes beside weights and KV pool, of which 2^25 were the workspace of cuBLAS, for
    a prompt of 8,192 tokens: here without what a step of decodes and prompts takes besides.
    """
    write_checkpoint(tmp_path, SHAPES["Qwen3-8B"], 40960)
    memory = StepMemory(tmp_path, 8192, 256, torch.bfloat16)
    alive = memory.alive(draws=False).most + 4 * memory.slots.entries
    # The branch before was kept then.
    branch = 2 * 8192 * 4096
    assert alive + branch + (1 << 25) == pytest.approx(844_369_920, rel=0.01)


def test_the_allocator_keeps_segments() -> None:
    """Those of PyTorch's source: 2 MiB for small tensors, 20 for larger ones, or their own."""
    memory = Allocator(100 * MIB)
    small = [memory.take(1), memory.take(MIB)]
    assert (small[0].size, memory.reserved) == (512, 2 * MIB)
    large = [memory.take(2 * MIB), memory.take(19 * MIB)]
    assert memory.reserved == (2 + 20 + 20) * MIB
    assert large[1].size == 20 * MIB, "a rest of a MiB is not cut off"
    memory.give_back(large[0])
    memory.take(19 * MIB)
    assert memory.reserved == 42 * MIB, "blocks beside one another are joined"
    memory.give_back(large[1])
    memory.owner = "another stream"
    with pytest.raises(torch.OutOfMemoryError, match="83886080 bytes"):
        memory.take(80 * MIB)
    assert (memory.reserved, memory.releases) == (22 * MIB, 1)


@pytest.mark.parametrize("seed", range(20))
def test_many_tensors_take_no_more_than_is_counted(seed: int) -> None:
    """In sizes as results of graphs have them, but for a segment of each kind."""
    chosen = random.Random(seed)
    step = chosen.choice([700, 2048, 8192, 40_000])
    sizes = [rows * step for rows in (1, 2, 4, *range(8, 1024, 24))]
    chosen.shuffle(sizes)
    memory = Allocator(1 << 40)
    for size in sizes:
        memory.take(size)
    assert memory.reserved <= sum(map(allocated, sizes)) + 22 * MIB


@pytest.mark.parametrize("hidden", [1024, 4096, 8192])
@pytest.mark.parametrize("order", ["up", "down", "any"])
def test_graphs_take_no_more_than_is_counted(hidden: int, order: str) -> None:
    """Graphs by rows that share memory, captured in any order after the largest: in each, tensors
    come and go, and a result stays.
    """
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, *range(64, 257, 32), 384, 512, 768, 1024]
    memory = Allocator(1 << 40)
    memory.owner = ("graphs",)

    def capture(rows: int, kept: int) -> None:
        stream: list[Block] = []
        for width in (hidden, hidden, 6 * hidden, 3 * hidden, hidden, 6 * hidden, 37_984):
            stream.append(memory.take(2 * rows * width))
            if len(stream) > 3:
                memory.give_back(stream.pop(0))
        memory.take(kept)
        for block in stream:
            memory.give_back(block)

    capture(sizes[-1], 4 * sizes[-1])
    first = memory.reserved
    rest = [(rows, kept) for rows in sizes for kept in (4 * rows, 2 * rows * hidden)]
    rest.sort(reverse=order == "down")
    if order == "any":
        random.Random(hidden).shuffle(rest)
    for rows, kept in rest:
        capture(rows, kept)
    results = [2 * rows * hidden for rows in sizes]
    later = graph_bytes(first, 0, results) - len(sizes) * (2 << 20)
    assert memory.reserved - first <= later


def test_a_driver_that_takes_little_or_too_much_is_bounded() -> None:
    """Memory comes in pieces, and another process may have taken some meanwhile."""
    found = [graph_bytes(0, driver, [0] * 15) for driver in (-5, 0, 3 << 20, 1 << 40)]
    pieces = [(size - 40 * MIB) / 15 / MIB for size in found]
    assert pieces == [2, 2, 3, 32]
