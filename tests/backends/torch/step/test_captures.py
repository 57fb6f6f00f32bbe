"""When graphs are captured: behind the start, in pauses, or before a step that needs one again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock._native import encode_sampling
from penstock.backends.torch import backend as backend_module
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.step import prompt_graphs
from penstock.backends.torch.step.captures import Captures, Graph, Key
from penstock.backends.torch.step.device import Cpu
from penstock.core import Allocation, StepPlan
from penstock.core.plan import LAST_SAMPLED
from penstock.engine.startup import read_model
from tests.backends.torch import fake_kernels
from tests.backends.torch.driving import Driver, Part, backend, config_of
from tests.backends.torch.fake_cuda import FakeCuda, fake_cuda
from tests.backends.torch.ranks import test_ranks
from tests.backends.torch.step.test_graphs import (
    DRAWN,
    GRAPHS,
    Recorder,
    answers,
    kernels,
    pause,
    recorded,
    recorder,
)
from tests.limits import HANG

__all__ = ["kernels", "recorder"]


class Kind:
    """Graphs of so many rows each, of which `late` are captured behind all others."""

    def __init__(self, *rows: int, late: tuple[int, ...] = ()) -> None:
        self._graphs = {(each, False): graph(each) for each in rows + late}
        self._late = late

    def sizes(self) -> Iterator[tuple[int, Key]]:
        for key in self._graphs:
            yield key[0] + 1000 * (key[0] in self._late), key

    def graph(self, key: Key) -> Graph:
        return self._graphs[key]

    def largest(self) -> Graph:
        return self._graphs[max(self._graphs)]

    def results(self) -> list[int]:
        return [4 * rows for rows, _ in self._graphs]

    def forget(self) -> None:
        self._graphs.clear()


def graph(rows: int) -> Graph:
    return Graph(rows, lambda: torch.zeros(rows), lambda: None)


class Captured(list[int]):
    """Rows of what was captured, in the order of the captures."""

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.append(len(work()))
        return work


ALONE: Any = SimpleNamespace(ranks=SimpleNamespace(group=None))


def test_pauses_capture_the_smallest_first_and_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    captured = Captured()
    captures = Captures(ALONE, captured, [Kind(4, 1, 64, late=(2,)), Kind(16, 1)])
    assert (len(captures), captures.results()) == (6, [16, 4, 256, 8, 64, 4])
    with caplog.at_level(logging.INFO):
        for count in range(8):
            assert captures.complete == (count >= 6)
            captures.capture_next()
            assert len(captured) == min(count + 1, 6), "one in each pause"
    assert captured == [1, 1, 4, 16, 64, 2]
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("6 CUDA graphs captured in ")


def test_captures_that_are_rehearsed_are_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Captures(ALONE, Captured(), [Kind(1)], logged=False).capture_all()
    assert not caplog.records


def test_what_a_step_captured_no_pause_captures_again() -> None:
    captured, kind = Captured(), Kind(1, 2, 4)
    captures = Captures(ALONE, captured, [kind])
    needed = [kind.graph((4, False)), kind.graph((2, False))]
    captures.capture_again(needed)
    assert captured == [], "steps that need a graph once do not wait for it"
    for each in needed:
        each.run()
    for _ in range(3):
        captures.capture_again(needed)
    assert captured == [4, 2], "one before each step"
    captures.capture_next()
    assert captured == [4, 2, 1]
    assert captures.complete
    captures.capture_all()
    assert len(captured) == 3


@pytest.mark.parametrize("parameters", [({},) * 3, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek3", "qwen2moe"])
def test_a_busy_server_captures_too_and_its_tokens_stay_the_same(
    family: str, parameters: list[dict[str, Any]], recorder: Recorder
) -> None:
    """No step waits for more than one capture, and most of what is needed again is captured."""
    with backend(family) as eager:
        expected = answers(Driver(eager, seed=3), parameters)
    with recorded(family, recorder, paused=False) as loaded:
        seen: list[int] = []
        submit = loaded.submit

        def noted(plan: StepPlan) -> Any:
            step = submit(plan)
            step.result(HANG)
            seen.append(recorder.captures)
            return step

        loaded.submit = noted  # type: ignore[method-assign]
        for _ in range(3):
            assert answers(Driver(loaded, seed=3), parameters) == expected
        assert max(b - a for a, b in pairwise([0, *seen])) == 1
        # Decodes of 4, 2 and 1; prompts of 32 and 64; draws of one.
        assert recorder.captures == 6
        loaded.submit = submit  # type: ignore[method-assign]
        pause(loaded)
        assert recorder.captures == GRAPHS
        assert answers(Driver(loaded, seed=3), parameters) == expected


def test_pauses_between_the_steps_of_sequences_leave_them_as_they_are(recorder: Recorder) -> None:
    """A capture computes: it keeps no token, and writes to no block of theirs."""
    parameters = DRAWN[0]

    def tokens(loaded: Any, *, paused: bool) -> list[int]:
        driver = Driver(loaded, seed=3)
        driver.register(0, encode_sampling(**parameters))
        found = driver.run(Part(0, list(range(7, 50)))).tokens.tolist()
        for _ in range(GRAPHS):
            if paused:
                # Behind a step whose result is not there yet.
                step = loaded.submit(driver.plan(Part(0, [LAST_SAMPLED])))
                loaded.submit(StepPlan(99)).result(HANG)
                found += step.result(HANG).tokens.tolist()
            else:
                found += driver.run(Part(0, [LAST_SAMPLED])).tokens.tolist()
        return found

    with backend("llama") as eager:
        expected = tokens(eager, paused=False)
    with recorded("llama", recorder, paused=False) as loaded:
        assert tokens(loaded, paused=True) == expected
        assert recorder.captures == GRAPHS


@pytest.mark.usefixtures("kernels")
def test_ranks_of_a_stage_capture_the_same_graphs_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In pauses and between steps; the sums of a capture need the other rank at the same time."""
    orders: list[Captured] = []

    class Device(Cpu):
        def __init__(self, threads: int) -> None:
            super().__init__(threads)
            orders.append(Captured())
            self._captured = orders[-1]

        @property
        def capture(self) -> Captured:  # type: ignore[override]
            return self._captured

    monkeypatch.setattr(test_ranks, "Cpu", Device)
    with backend("llama") as loaded:
        expected = answers(Driver(loaded, seed=3))
    with test_ranks.cut("llama", 2, 1) as ranks:
        driver = Driver(ranks, seed=3)  # type: ignore[arg-type]
        assert answers(driver) == expected
        between = len(orders[0])
        assert between >= 3
        for _ in range(GRAPHS):
            for step in [rank.submit(StepPlan(1)) for rank in ranks.ranks]:
                step.result(HANG)
        assert answers(Driver(ranks, seed=3)) == expected  # type: ignore[arg-type]
    first, second = orders
    assert first == second
    assert len(first) == GRAPHS


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], TorchBackend]]:
    """Loads on a GPU, with all kernels compiled ahead or not, and steps of 512 tokens at most."""
    loaded: list[TorchBackend] = []
    monkeypatch.setattr(prompt_graphs, "TOKENS", (32, 80))
    with fake_cuda():
        fake_kernels.install(monkeypatch)

        def load(compiled: bool) -> TorchBackend:
            done: Future[bool] = Future()
            done.set_result(compiled)
            monkeypatch.setattr(backend_module, "compile_ahead", lambda *_: done)
            config = config_of("llama")
            loaded.append(TorchBackend(config, read_model(config), None, FakeCuda(0)))
            return loaded[-1]

        yield load
        for each in loaded:
            each.close()


def captured(loaded: TorchBackend) -> Counter[bool]:
    found = [*loaded._graphs.decodes._graphs.values()]  # type: ignore[union-attr]
    found += loaded._graphs.prompts._graphs.values()  # type: ignore[union-attr]
    return Counter(each.replay is not None for each in found)


def test_a_gpu_is_ready_before_its_graphs_are_captured(
    gpu: Callable[[bool], TorchBackend],
) -> None:
    loaded = gpu(True)
    pauses = loaded.facts.pauses
    free = loaded.free_memory()
    assert f", {pauses} graphs to capture in pauses" in loaded.facts.stages[-1][2]
    loaded.allocate(Allocation((96,)))
    assert captured(loaded) == {}
    for count in range(1, pauses + 1):
        loaded.submit(StepPlan(count)).result(HANG)
        assert captured(loaded) == {True: count}
    assert loaded._graphs.captures is not None
    assert loaded._graphs.captures.complete
    assert loaded.free_memory() == free
    # More than there is use for.
    assert loaded.submit(StepPlan(pauses + 1)).result(HANG).tokens.tolist() == []


def test_without_its_kernels_no_graph_is_left_for_later(
    gpu: Callable[[bool], TorchBackend],
) -> None:
    """A capture would hold up requests for as long as the compiler takes."""
    loaded = gpu(False)
    assert loaded.facts.pauses == 0
    loaded.allocate(Allocation((96,)))
    assert loaded._graphs.captures is not None
    assert captured(loaded) == {True: len(loaded._graphs.captures)}


def test_graphs_of_flashinfer_are_captured_before_the_start_is_over(
    gpu: Callable[[bool], TorchBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels are not compiled ahead: a pause would wait for the compiler."""
    loaded = gpu(True)
    assert loaded.facts.pauses > 0
    monkeypatch.setattr(loaded, "_flash", SimpleNamespace(graph_bytes=lambda *_: 0))
    monkeypatch.setattr(loaded, "_place", lambda _: None)
    found = SimpleNamespace(largest=[], describe=lambda _: "", free=1)
    monkeypatch.setattr(backend_module, "measure", lambda *_: found)
    loaded._measure()
    assert loaded.facts.pauses == 0


@pytest.mark.parametrize("compiled", [(True, True), (True, False), (False, False)])
def test_ranks_agree_on_whether_kernels_are_there(
    compiled: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with test_ranks.cut("llama", 2, 1) as ranks, ThreadPoolExecutor(2) as pool:
        for rank, there in zip(ranks.ranks, compiled, strict=True):
            rank._compiled = Future()
            rank._compiled.set_result(there)
        found = [pool.submit(rank._all_compiled) for rank in ranks.ranks]
        assert [each.result(HANG) for each in found] == [all(compiled)] * 2
