"""On a fake GPU whose memory is that of torch's allocator (`caching.py`): the KV pools get what the
largest steps leave, and no step finds too little.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock._native import encode_sampling
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.sampling.grammars import MaskedRow, RowMasks
from penstock.backends.torch.startup import measuring, memory
from penstock.backends.torch.step import captures, graphs, outputs, prompt_graphs
from penstock.core import Allocation, PenstockError, Pooling, StepPlan
from penstock.core.plan import LAST_SAMPLED
from penstock.core.request import MAX_LOGPROBS
from penstock.engine.startup import read_model
from tests.backends.torch import fake_kernels
from tests.backends.torch.caching import is_graphs
from tests.backends.torch.driving import Driver, Part, config_of
from tests.backends.torch.fake_cuda import POOL, FakeCuda, Watch, fake_cuda

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from benchmarks.gpu.shapes import Shape, write_checkpoint

MIB = 1 << 20
TOKENS, SLOTS, VOCABULARY = 512, 64, 32_768
SHAPES = {
    "dense": Shape(1, 128, 4, 1, 2048, vocabulary=VOCABULARY, d=32),
    "experts": Shape(1, 128, 4, 1, 512, 4, 2, vocabulary=VOCABULARY, d=32),
}
EVERYTHING = {
    "logprobs": MAX_LOGPROBS,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.2,
    "bias": [(5, 1.0)],
}


@contextmanager
def started(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch, total: int = 1 << 30
) -> Iterator[tuple[TorchBackend, Watch]]:
    """A backend on a GPU of so many bytes, before its KV pools are allocated. Nothing is left over
    for the driver, which takes nothing here.
    """
    write_checkpoint(tmp_path, SHAPES[shape], 2048)
    monkeypatch.setattr(measuring, "MARGIN", 0)
    monkeypatch.setattr(memory, "DRIVER_STEP", 0)
    monkeypatch.setattr(prompt_graphs, "TOKENS", (128, 512))
    for module in (graphs, prompt_graphs):
        monkeypatch.setattr(module, "BUCKETS", (1, 16, 64))
    sizes = {"max_num_batched_tokens": TOKENS, "max_num_seqs": SLOTS, "dtype": "auto"}
    with fake_cuda() as watch:
        watch.memory.total = total
        fake_kernels.install(monkeypatch)
        config = config_of(str(tmp_path), kv_cache_dtype="auto", **sizes)
        loaded = TorchBackend(config, read_model(config), None, FakeCuda(0))
        try:
            yield loaded, watch
        finally:
            loaded.close()


def all_masks(rows: Sequence[MaskedRow], _computed: Callable[[], bool]) -> RowMasks:
    """In place of a grammar for each sequence."""
    return RowMasks(bits=dict.fromkeys(range(SLOTS), b"\xff" * (VOCABULARY // 8)))


def scored(plan: Any, **fields: Any) -> Any:
    plan.registrations = [replace(each, **fields) for each in plan.registrations]
    return plan


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "busy"])
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_with_everything_at_once_find_what_was_left(
    shape: str, paused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, beside KV pools of all that is free: torch has to give nothing back. Graphs are
    captured in pauses before, or between these steps.
    """
    with started(tmp_path, shape, monkeypatch) as (loaded, watch):
        (group,) = loaded.kv_spec().groups
        blocks = loaded.free_memory() // group.block_bytes
        loaded.allocate(Allocation((blocks,)))
        kept = watch.memory.kept.copy()
        for _ in range(paused * loaded.facts.pauses):
            loaded.submit(StepPlan(1)).result(60.0)
        driver = Driver(loaded, blocks)

        def run(*parts: Part, **fields: Any) -> None:
            loaded.submit(scored(driver.plan(*parts), **fields)).result(60.0)

        def begin(**fields: Any) -> None:
            for slot in range(SLOTS):
                driver.register(slot, encode_sampling(**fields))

        begin()
        # Small steps first, which leave their memory in pieces.
        for rows in (1, 10, 50):
            run(*(Part(slot, [7, 8, 9]) for slot in range(rows)))
            run(*(Part(slot, [LAST_SAMPLED]) for slot in range(rows)))
        driver.register(0)
        run(Part(0, [5] * TOKENS))
        driver.register(0)
        run(Part(0, [5] * TOKENS), pooling=Pooling.MEAN)
        monkeypatch.setattr(outputs, "find_masks", all_masks)
        begin(**EVERYTHING)
        each = [Part(slot, [slot] + [3] * 7, score=True) for slot in range(SLOTS)]
        run(*each, prompt_logprobs=MAX_LOGPROBS)
        for rows in (SLOTS, 16, 1):
            run(*(Part(slot, [4]) for slot in range(rows)))
        run(*(Part(slot, [4]) for slot in range(SLOTS - 1)), Part(SLOTS - 1, [5] * 300))
        assert watch.memory.releases == 0
        grown = [owner for owner, size in watch.memory.kept.items() if size > kept[owner]]
        assert all(map(is_graphs, grown)), "steps took more than those before the pools"


def test_what_is_free_is_what_steps_and_graphs_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of a larger GPU is for the KV pools, and they take all but what graphs need."""
    with started(tmp_path, "dense", monkeypatch) as (loaded, watch):
        free, kept = loaded.free_memory(), watch.memory.reserved
        assert loaded.free_memory() == free
        stage = loaded.facts.stages[-1]
        assert stage[0] == "largest step computed"
        assert f"for {TOKENS} tokens" in stage[2]
        assert f"{free >> 20} free" in stage[2]
        # Of the graphs that products were measured with none is left.
        assert [own for own, size in watch.memory.kept.items() if is_graphs(own) and size] == [POOL]
    assert 0.9 * ((1 << 30) - kept) < free < (1 << 30) - kept
    larger = tmp_path / "larger"
    larger.mkdir()
    with started(larger, "dense", monkeypatch, total=1 << 31) as (loaded, _):
        assert loaded.free_memory() - free == 1 << 30


def test_a_gpu_that_is_too_small_for_a_step_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(PenstockError, match=r"for a step of 512 tokens: .*--max-num-batched-tok"),
        started(tmp_path, "dense", monkeypatch, total=60 * MIB),
    ):
        pass


def test_a_graph_without_memory_is_launched_kernel_by_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same tokens, and one line in the log for each size."""

    def tokens(*, full: bool) -> list[int]:
        found: list[int] = []
        with started(tmp_path, "dense", monkeypatch) as (loaded, _):
            loaded.allocate(Allocation((200,)))
            driver = Driver(loaded, 200)
            if full:
                monkeypatch.setattr(torch.cuda, "CUDAGraph", Full)
            for slot in range(3):
                driver.register(slot, encode_sampling(temperature=1.0, seed=slot))
                found += driver.run(Part(slot, [slot, 2, 3])).tokens
            for _ in range(3):
                found += driver.run(*(Part(slot, [LAST_SAMPLED]) for slot in range(3))).tokens
        return found

    expected = tokens(full=False)
    with caplog.at_level(logging.WARNING):
        assert tokens(full=True) == expected
    lines = [each.getMessage() for each in caplog.records if "too little memory" in each.msg]
    # A prompt, its draw, decodes: the second time that a step needs each.
    assert [line.split()[3] for line in lines] == ["128", "1", "16"]
    assert all("--kv-cache-memory-bytes" in line for line in lines)


class Full:
    """A graph of a GPU without memory: the capture ends with an error of its own."""

    def capture_begin(self, **_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")

    def capture_end(self) -> None:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def test_errors_of_other_kinds_end_a_capture() -> None:
    def broken(_: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        captures.recorded(broken, model(group=None), lambda: torch.zeros(1), 1)


@pytest.mark.parametrize("group", [None, object()])
def test_a_rank_of_several_does_not_go_on_without_a_graph(group: object | None) -> None:
    """The others would wait in its sums for ever."""

    def full(_: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")

    def record() -> Callable[[], Tensor]:
        return captures.recorded(full, model(group=group), work, 1)

    def work() -> Tensor:
        return torch.zeros(1)

    if group is None:
        assert record() is work
    else:
        with pytest.raises(torch.OutOfMemoryError):
            record()


def model(*, group: object | None) -> Any:
    return SimpleNamespace(ranks=SimpleNamespace(group=group))
