"""Ranks in processes, with a backend without a model: results, failures, and what is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config import shared_memory_directory
from penstock.core import Allocation, KvGroup, KvSpec, PenstockError, StepPlan
from penstock.core.progress import Report, silent
from penstock.executor import WorkersLostError, connection, rank_group
from penstock.executor.connection import GRACE
from penstock.executor.mp import connect_processes
from penstock.executor.rank_group import RanksExecutor
from tests.e2e.server import eventually
from tests.fakes.backend import BLOCKS, engine_config, rank_layout
from tests.fakes.executor import next_token
from tests.fakes.plans import one_sequence, registration
from tests.limits import HANG
from tests.processes import is_alive, memory_files

pytestmark = pytest.mark.heavy

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")


def plan(step: int, token: int) -> StepPlan:
    """The next token of a sequence that grows by one each step."""
    new = registration() if step == 1 else None
    return one_sequence(step, [token], step - 1, [0], new=new)


class Start:
    def __init__(self) -> None:
        self.made: list[RanksExecutor] = []

    def __call__(
        self, tp: int, pp: int, report: Report = silent, **faults: dict[str, object]
    ) -> RanksExecutor:
        layout = rank_layout(tp, pp, **faults)
        executor = connect_processes(layout, engine_config(), shared_memory_directory(), report)
        self.made.append(executor)
        executor.allocate(Allocation((BLOCKS,)))
        return executor


@pytest.fixture
def start(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", f"{repository}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(connection, "EXPLANATION", HANG)
    before, descriptors = memory_files(), len(os.listdir("/proc/self/fd"))
    made = Start()
    yield made
    for executor in made.made:
        executor.close()
        assert not [pid for pid in executor.pids if Path(f"/proc/{pid}").exists()]
    assert memory_files() <= before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_slowest_rank_is_reported_and_reports_of_others_hold_up_nothing(start: Start) -> None:
    many, lines = 40, list[str]()
    faults = {"rank0": {"loading": [0.1] * many}, "rank1": {"loading": [0.5] * many}}
    assert rank_layout(2, 1).answer_cells < many
    start(2, 1, lines.append, **faults)
    slowest = [line for line in lines if line.startswith("rank 0 of 2: 10% of")]
    assert len(slowest) == many


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_plans_go_to_all_ranks_and_the_reading_one_answers(start: Start, tp: int, pp: int) -> None:
    executor = start(tp, pp)
    assert executor.depth == max(pp, 2)
    assert [each.facts.device for each in executor.loaded] == [
        f"rank {rank}" for rank in range(tp * pp)
    ]
    context = [5]
    for step in range(1, 10):
        result = executor.submit(plan(step, context[-1])).result()
        context += result.tokens
    assert context[1:] == [next_token(context[:at], 97) for at in range(1, 10)]


def test_several_plans_are_in_flight_and_some_may_be_given_up(start: Start) -> None:
    executor = start(1, 2)
    for first in (1, 3, 5):
        tickets = [executor.submit(plan(step, step)) for step in (first, first + 1)]
        results = [list(ticket.result().tokens) for ticket in tickets]
        assert results == [
            [next_token(list(range(1, step + 1)), 97)] for step in (first, first + 1)
        ]
    given_up, kept = executor.submit(plan(7, 7)), executor.submit(plan(8, 8))
    assert list(kept.result().tokens) == [next_token(list(range(1, 9)), 97)]
    with pytest.raises(PenstockError, match="step 7 was fetched before, or passed over"):
        given_up.result()


def test_a_wait_may_be_bounded(start: Start) -> None:
    ticket = start(1, 1, rank0={"how": "hang", "step": 1}).submit(plan(1, 1))
    with pytest.raises(TimeoutError):
        ticket.result(0.1)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_that_raises_is_named_with_its_traceback(
    start: Start, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    executor = start(2, 2, **{f"rank{rank}": {"how": "raise", "step": 2}})
    executor.submit(plan(1, 1)).result()
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(
            WorkersLostError, match=f"rank {rank} failed in step 2: RuntimeError: the fake"
        ),
    ):
        compute(executor, 2)
    assert "in fail" in caplog.text
    assert "told to raise" in caplog.text
    with pytest.raises(WorkersLostError):
        executor.submit(plan(9, 1))
    assert not [pid for pid in executor.pids if Path(f"/proc/{pid}").exists()]


def compute(executor: RanksExecutor, first: int) -> None:
    """Steps until something is raised; a rank that is not waited for may fail a little later."""
    deadline = time.monotonic() + HANG
    step = first
    while time.monotonic() < deadline:
        executor.submit(plan(step, 1)).result()
        step += 1 if step < 16 else 0
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("how", "said"), [("kill", r"killed by signal 9 \(SIGKILL\)"), ("exit", "status 3")]
)
def test_a_rank_that_is_gone_is_noticed(start: Start, how: str, said: str) -> None:
    executor = start(2, 1, rank0={"how": "hang", "step": 1}, rank1={"how": how, "step": 1})
    with pytest.raises(WorkersLostError, match=rf"rank 1 \(process \d+\) .*{said}"):
        executor.submit(plan(1, 1)).result(HANG)


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_that_goes_while_there_is_nothing_to_do_is_noticed(start: Start, rank: int) -> None:
    executor = start(3, 1)
    executor.check()
    os.kill(executor.pids[rank], signal.SIGKILL)
    deadline = time.monotonic() + HANG
    with pytest.raises(WorkersLostError, match=f"rank {rank} "):
        watch(executor, deadline)


def watch(executor: RanksExecutor, deadline: float) -> None:
    while time.monotonic() < deadline:
        executor.check()
        time.sleep(0.01)


def test_a_plan_that_no_rank_can_compute_leaves_them_usable(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "GRACE", HANG)
    fault: dict[str, object] = {"how": "wrong plan", "step": 1}
    executor = start(2, 1, rank0=fault, rank1=fault)
    with pytest.raises(PenstockError, match="told not to like the plan") as caught:
        executor.submit(plan(1, 1)).result()
    assert not isinstance(caught.value, WorkersLostError)
    assert list(executor.submit(plan(2, 2)).result().tokens) == [next_token([1, 2], 97)]


@pytest.mark.parametrize("rank", range(2))
def test_a_plan_that_one_rank_cannot_compute_is_the_end(start: Start, rank: int) -> None:
    executor = start(2, 1, **{f"rank{rank}": {"how": "wrong plan", "step": 1}})
    with pytest.raises(WorkersLostError, match=f"rank {rank} failed in step 1"):
        compute(executor, 1)


def test_a_rank_that_fails_alone_ends_the_wait_for_another(start: Start) -> None:
    executor = start(2, 1, rank0={"how": "hang", "step": 1}, rank1={"how": "wrong plan", "step": 1})
    with pytest.raises(WorkersLostError, match="rank 1 failed in step 1"):
        executor.submit(plan(1, 1)).result(HANG)


def test_a_rank_that_cannot_load_its_part_says_why(start: Start) -> None:
    with pytest.raises(PenstockError, match="rank 1 failed: tensor 'x' is damaged"):
        start(2, 1, rank1={"how": "refuse"})


def test_a_rank_that_ends_while_it_loads_is_noticed(start: Start) -> None:
    with pytest.raises(WorkersLostError, match=r"rank 1 \(process \d+\) exited with status 3"):
        start(2, 1, rank1={"how": "exit at load"})


def test_a_backend_that_does_not_exist_is_named(start: Start) -> None:
    config = engine_config()
    config = replace(config, compute=replace(config.compute, backend="tests.fakes.nowhere"))
    with pytest.raises(WorkersLostError, match=r"No module named 'tests.fakes.nowhere'"):
        connect_processes(rank_layout(2, 1), config, shared_memory_directory())


def test_ranks_say_what_they_hold_before_blocks_are_allocated(start: Start) -> None:
    sizes = {"rank0": {"free": 7, "groups": [(10, None), (4, 64)]}, "rank1": {"free": 5}}
    layout = rank_layout(2, 1, **sizes)
    executor = connect_processes(layout, engine_config(), shared_memory_directory())
    start.made.append(executor)
    assert [each.free_memory for each in executor.loaded] == [7, 5]
    groups = (KvGroup((0,), 10, None), KvGroup((0,), 4, 64))
    assert executor.loaded[0].kv_spec == KvSpec(16, groups)
    executor.allocate(Allocation((3, 2)))
    assert list(executor.submit(plan(1, 1)).result().tokens) == [next_token([1], 97)]


@pytest.mark.parametrize("rank", range(2))
def test_blocks_that_one_rank_cannot_allocate_end_all_with_its_reason(
    start: Start, rank: int
) -> None:
    reason = rf"rank {rank} failed: no memory for \[8\] blocks"
    with pytest.raises(WorkersLostError, match=reason):
        start(2, 1, **{f"rank{rank}": {"how": "refuse blocks"}})
    (executor,) = start.made
    assert not [pid for pid in executor.pids if Path(f"/proc/{pid}").exists()]


def test_a_plan_before_blocks_are_allocated_ends_all(start: Start) -> None:
    layout = rank_layout(1, 1)
    executor = connect_processes(layout, engine_config(), shared_memory_directory())
    start.made.append(executor)
    with pytest.raises(WorkersLostError, match="rank 0 failed in step 1"):
        executor.submit(plan(1, 1)).result()


def test_plans_that_no_rank_can_compute_may_overlap(start: Start) -> None:
    """The next plan is with the ranks before the first one's failure is known."""
    fault: dict[str, object] = {"how": "wrong plan", "steps": [1, 2, 4]}
    executor = start(2, 1, rank0=fault, rank1=fault)
    tickets = [executor.submit(plan(step, step)) for step in (1, 2, 3, 4)]
    answers = executor._connection.ready
    eventually(lambda: answers(0) and answers(1), "answers of both ranks")
    time.sleep(2 * GRACE)
    for step, ticket in enumerate(tickets, 1):
        if step == 3:
            assert list(ticket.result(HANG).tokens) == [next_token([1, 2, 3], 97)]
        else:
            with pytest.raises(PenstockError, match="told not to like the plan") as caught:
                ticket.result(HANG)
            assert not isinstance(caught.value, WorkersLostError)
    assert list(executor.submit(plan(5, 5)).result().tokens) == [next_token([1, 2, 3, 4, 5], 97)]


OWNER = """
import sys, time
from tests.executor.test_mp import Start
from tests.processes import memory_files
executor = Start()(2, 2)
print(*executor.pids, flush=True)
time.sleep(600)
"""


def test_ranks_outlive_the_thread_that_started_them(start: Start) -> None:
    with ThreadPoolExecutor(1) as thread:
        executor = thread.submit(start, 2, 1).result()
    assert list(executor.submit(plan(1, 1)).result(HANG).tokens) == [next_token([1], 97)]


@pytest.mark.parametrize("stands_still", [False, True])
def test_ranks_end_with_a_killed_owner_and_leave_nothing(
    repository: Path, stands_still: bool
) -> None:
    before = memory_files()
    paths = [str(repository), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    assert owner.stdout is not None
    pids = owner.stdout.readline().split()
    assert len(pids) == 4
    assert memory_files() <= before
    if stands_still:
        os.kill(int(pids[1]), signal.SIGSTOP)
    owner.kill()
    owner.communicate(timeout=HANG)
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids), "the end of the ranks")
    assert memory_files() <= before
