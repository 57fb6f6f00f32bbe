"""Several ranks as one executor, built by `connect_processes`, `connect_nodes` or `connect_ray`."""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from penstock._native import encode_sampling
from penstock.core import (
    Allocation,
    Loaded,
    PenstockError,
    Registration,
    StepPlan,
    StepResult,
)
from penstock.core.codec import encode_plan
from penstock.core.progress import Report, silent
from penstock.executor.connection import GRACE, LOOK, Members, RankConnection
from penstock.executor.ranks import RankLayout
from penstock.executor.ranks.messages import (
    Answer,
    Computed,
    Failed,
    LoadStatus,
    Ready,
    encode_allocate,
)
from penstock.executor.transfers import RankTransfers
from penstock.executor.transport import Transport

FIRST_STEP = 120.0
"""Timeout of the first step, in seconds."""

log = logging.getLogger("penstock.executor")


class RanksExecutor:
    """Executor over several ranks. `after_ready` is called once all ranks have allocated their KV
    pools.
    """

    def __init__(
        self,
        layout: RankLayout,
        transport: Transport,
        members: Members,
        cleanup: ExitStack,
        after_ready: Callable[[RanksExecutor], None] = lambda _: None,
        report: Report = silent,
    ) -> None:
        self.depth = layout.depth
        self.loaded: tuple[Loaded, ...] = ()
        self._layout = layout
        self._after_ready = after_ready
        self._report = report
        self._connection = RankConnection(transport, members, cleanup, self._on_answer)
        self.transfers = RankTransfers(layout.size, self._connection)
        self._starting: dict[int, LoadStatus | Loaded | Ready] = {}
        self._pending: deque[int] = deque()
        """Submitted steps that the reading rank (the rank whose results the engine reads) has not
        answered.
        """
        self._results: dict[int, StepResult | Exception] = {}
        self._failures: dict[int, dict[int, Failed]] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order. Each id is valid on the rank's own node."""
        return self._connection.members.pids

    # Start ----------------------------------------------------------------------------------------

    def await_loaded(self, hosts: Sequence[str] = ()) -> None:
        """Wait until all ranks have loaded. `hosts` has the node of each rank, if there are several
        nodes.
        """
        self._await_all(Loaded)
        found = [self._starting[rank] for rank in range(self._layout.size)]
        loaded = [answer for answer in found if isinstance(answer, Loaded)]
        self.loaded = tuple(
            replace(each, facts=replace(each.facts, host=hosts[rank])) if hosts else each
            for rank, each in enumerate(loaded)
        )

    def allocate(self, allocation: Allocation) -> None:
        self._connection.send(encode_allocate(allocation))
        self._await_all(Ready)
        self._after_ready(self)

    def _await_all(self, kind: type[Loaded | Ready]) -> None:
        waiting = list(range(self._layout.size))
        while waiting:
            self.check()
            # Poll all ranks in turn, because a rank blocks if its progress reports are not read.
            for rank in waiting:
                self._connection.pump(rank, LOOK / len(waiting))
            waiting = [rank for rank in waiting if not isinstance(self._starting.get(rank), kind)]

    def _on_loading(self, rank: int, loading: LoadStatus) -> None:
        """Report the progress of the slowest rank that is still loading."""
        self._starting[rank] = loading
        found = self._starting.items()
        under_way = {each: at.share for each, at in found if isinstance(at, LoadStatus)}
        if min(under_way, key=under_way.__getitem__) == rank:
            self._report(f"rank {rank} of {self._layout.size}: {loading.line}")

    def compute_first_step(self) -> None:
        """Compute one token of one sequence on all ranks, to check that the ranks reach each other
        across hosts.

        The step writes the start of KV block 0. This is harmless, because a request writes a block
        before it reads it.
        """
        sampling = encode_sampling()
        groups = len(self.loaded[0].kv_spec.groups)
        plan = StepPlan(
            step=1,
            registrations=[Registration(0, sampling)],
            slots=array("i", (0,)),
            starts=array("i", (0,)),
            lengths=array("i", (1,)),
            tokens=array("i", (0,)),
            sample=array("b", (1,)),
            kept=array("i", (0,)) * groups,
            added_offsets=array("i", range(groups + 1)),
            added=array("i", (0,)) * groups,
        )
        self.submit(plan).result(FIRST_STEP)

    # Steps ----------------------------------------------------------------------------------------

    def submit(self, plan: StepPlan) -> RanksFuture:
        self._connection.send(encode_plan(plan))
        self._pending.append(plan.step)
        return RanksFuture(self, plan.step)

    def check(self) -> None:
        self._connection.check()

    def close(self) -> None:
        self.transfers.close()
        self._connection.close()

    def await_result(self, step: int, timeout: float | None) -> StepResult:
        """Wait for the result of `step`. Results of older steps are dropped, because steps are
        awaited in order. Raises TimeoutError, or the error of the step.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while step not in self._results:
            self.check()
            if step not in self._pending:
                raise PenstockError(f"the result of step {step} was fetched before, or passed over")
            self._pump_reader(deadline)
        result = self._results.pop(step)
        for older in [other for other in self._results if other < step]:
            del self._results[older]
        if isinstance(result, Exception):
            raise result
        return result

    def _pump_reader(self, deadline: float | None) -> None:
        left = LOOK if deadline is None else min(max(deadline - time.monotonic(), 0.0), LOOK)
        if self._connection.pump(self._layout.reader, left):
            return
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError("the step is still running")
        self._look_at_others()

    def _on_answer(self, rank: int, answer: Answer) -> None:
        if isinstance(answer, LoadStatus):
            self._on_loading(rank, answer)
        elif isinstance(answer, Loaded | Ready):
            self._starting[rank] = answer
        elif isinstance(answer, Failed):
            self._failures.setdefault(answer.step, {})[rank] = answer
            if rank == self._layout.reader:
                self._settle(answer.step, self._failed_everywhere(answer))
        elif isinstance(answer, Computed):
            self._settle(answer.step, answer.result)
            self._look_at_others()
        else:
            self.transfers.on_answer(rank, answer)

    def _settle(self, step: int, result: StepResult | Exception) -> None:
        while self._pending and self._pending.popleft() != step:
            pass
        self._results[step] = result
        self.transfers.known_steps += 1

    # Failures of plans ----------------------------------------------------------------------------

    def _look_at_others(self) -> None:
        """Detect a rank that failed alone in a step while the other ranks wait for it, and end all
        ranks.
        """
        reader = self._layout.reader
        for rank in range(self._layout.size):
            while rank != reader and self._connection.ready(rank):
                self._connection.pump(rank, 0.0)
        for step, failures in self._failures.items():
            first = min(failures.values(), key=lambda failed: failed.at)
            # The reading rank must fail in this step too, unless it still computes an earlier step
            # or its answer has not been read.
            at_work = step in self._pending and (
                step != self._pending[0] or self._connection.ready(reader)
            )
            late = time.monotonic() - first.at > GRACE
            if step not in self._pending or (late and not at_work):
                self._connection.lose(first.message, first)

    def _failed_everywhere(self, answer: Failed) -> Exception:
        """Return the error of a plan that failed on every rank: the ranks stay usable. If any rank
        has computed the plan, end all ranks, because their states differ.
        """
        failures = self._failures[answer.step]
        deadline = time.monotonic() + GRACE
        for rank in range(self._layout.size):
            while rank not in failures:
                if time.monotonic() > deadline:
                    self._connection.lose(answer.message, answer)
                self._connection.pump(rank, LOOK)
        del self._failures[answer.step]
        log.error("step %d:\n%s", answer.step, answer.trace or answer.message)
        return PenstockError(answer.message)


class RanksFuture:
    def __init__(self, executor: RanksExecutor, step: int) -> None:
        self._executor = executor
        self._step = step

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the result. It can be fetched only once."""
        return self._executor.await_result(self._step, timeout)
