"""Several ranks as one executor: plans to all of them, their answers, and how they are lost.

What carries plans and answers, and what the ranks run in, is up to the executors of each kind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn, Protocol

from penstock.core import PenstockError, Ranks, StepPlan, StepResult, WorkerFacts
from penstock.core.answers import (
    Answer,
    Computed,
    Failed,
    Movements,
    MoverClosed,
    MoverReport,
    Ready,
    decode_answer,
)
from penstock.core.codec import encode_plan
from penstock.core.transfer import Moved, OpenTiers, Transfer, TransferKind
from penstock.core.transfer_codec import END, encode_open, encode_transfer
from penstock.executor.contract import WorkersLostError
from penstock.executor.exits import Exit
from penstock.executor.first import FIRST_STEP, first_step
from penstock.executor.moves import Moves

LEAST_ANSWER = 1 << 16
"""Bytes of an answer that every rank may give: facts, or a traceback."""
LOOK = 0.2
"""Seconds after which a wait for the reading rank looks at the others' answers."""
GRACE = 0.5
"""Seconds that the other ranks get to fail in the same step, or to say why they end."""

log = logging.getLogger("penstock.executor")


class Plans(Protocol):
    def send(self, message: bytes, /) -> None:
        """To all ranks; ConnectionError when that has ended."""


class Answers(Protocol):
    """Of one rank."""

    def receive(self, timeout: float, /) -> bytes | None:
        """The next one; None when none came in time, ConnectionError when none will come."""

    def ready(self) -> bool:
        """Whether one is there."""


class Fence(Protocol):
    def end(self, reason: str, /) -> None:
        """Every wait for what it guards ends."""


class Members(Protocol):
    """What the ranks run in. Each tells `RanksExecutor.on_exit` of the first that is gone."""

    def all_ended(self, timeout: float) -> bool: ...

    def end(self, notice: float = ...) -> None: ...


class RanksExecutor:
    """An executor of a kind makes the `_members` and what connects them, then awaits that they are
    ready.
    """

    _plans: Plans
    _members: Members
    facts: tuple[WorkerFacts, ...]

    def __init__(self, ranks: Ranks) -> None:
        self.depth = ranks.pp
        self._ranks = ranks
        self._lost: WorkersLostError | None = None
        self._exit: Exit | None = None
        self._results: dict[int, StepResult | Exception] = {}
        self._failures: dict[int, dict[int, Failed]] = {}
        self._answered = 0
        self._fences: Sequence[Fence] = ()
        self._answers: Sequence[Answers] = ()
        self._moves = Moves(ranks.size)
        self._known = 0
        """Plans since the tiers were opened whose results are known."""
        self._reports: dict[int, str] = {}
        self._flush_s = 0.0

    def submit(self, plan: StepPlan) -> RanksTicket:
        self._send(encode_plan(plan))
        return RanksTicket(self, plan.step)

    def check(self) -> None:
        if self._lost is None and self._exit is not None:
            self._lose(self._exit.how)
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        self._close_tiers()
        self._members.end()

    def _send(self, message: bytes) -> None:
        """To all ranks."""
        self.check()
        try:
            self._plans.send(message)
        except ConnectionError as error:
            self._lose(str(error))

    # Tiers ----------------------------------------------------------------------------------------

    def open_tiers(self, tiers: OpenTiers) -> None:
        self._send(encode_open(tiers))
        for rank in range(self._ranks.size):
            # One that cannot says why and ends, which ends this wait.
            while rank not in self._reports:
                self._receive(rank, LOOK)
        self._flush_s, self._known = tiers.flush_s, 0

    def transfer(self, transfer: Transfer) -> None:
        if transfer.kind != TransferKind.CANCEL:
            self._moves.begin(transfer.id)
        self._send(encode_transfer(transfer, self._known))

    def moved(self) -> list[Moved]:
        self.check()
        for rank, answers in enumerate(self._answers):
            while answers.ready() and (answer := self._receive(rank, 0.0)) is not None:
                if rank == self._ranks.reader:
                    self._take(answer)
        return self._moves.take()

    def mover_reports(self) -> tuple[str, ...]:
        return tuple(self._reports[rank] for rank in sorted(self._reports))

    def _close_tiers(self) -> None:
        """Returns when all ranks have stored what they were to store, or had the time for it."""
        if not self._reports:
            return
        deadline = time.monotonic() + self._flush_s + GRACE
        waiting = set(range(self._ranks.size))
        with suppress(WorkersLostError):  # Then nothing is to be closed.
            self._send(END)
            while waiting and time.monotonic() < deadline:
                closed = {
                    rank for rank in waiting if isinstance(self._receive(rank, LOOK), MoverClosed)
                }
                waiting -= closed

    # Answers --------------------------------------------------------------------------------------

    def _await_ready(self) -> tuple[WorkerFacts, ...]:
        """What each rank says first. One that cannot load says so and ends, which ends this wait
        too.
        """
        facts = []
        for rank in range(self._ranks.size):
            answer = None
            while not isinstance(answer, Ready):
                answer = self._receive(rank, LOOK)
            facts.append(answer.facts)
        return tuple(facts)

    def _compute_first_step(self) -> None:
        """Shows that ranks on several hosts work together. Plans of requests count from the start
        again.
        """
        self.submit(first_step()).result(FIRST_STEP)
        self._answered = 0

    def await_result(self, step: int, timeout: float | None) -> StepResult:
        """The result of `step`; older ones are dropped: plans are awaited in their order or not at
        all.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while step not in self._results:
            self.check()
            if step <= self._answered:
                raise PenstockError(f"the result of step {step} was fetched before, or passed over")
            self._take(self._next(deadline))
        result = self._results.pop(step)
        for older in [other for other in self._results if other < step]:
            del self._results[older]
        if isinstance(result, Exception):
            raise result
        return result

    def _take(self, answer: Answer) -> None:
        if isinstance(answer, Computed | Failed):
            self._known += 1
        if isinstance(answer, Computed):
            self._answered = answer.step
            self._results[answer.step] = answer.result
            self._look_at_others()
        elif isinstance(answer, Failed):
            self._answered = answer.step
            self._results[answer.step] = self._failed_everywhere(answer)

    def _next(self, deadline: float | None) -> Answer:
        """The next answer of the reading rank; TimeoutError at the deadline."""
        while True:
            left = LOOK if deadline is None else min(max(deadline - time.monotonic(), 0.0), LOOK)
            answer = self._receive(self._ranks.reader, left)
            if answer is not None:
                return answer
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("the step is still running")
            self._look_at_others()

    def _receive(self, rank: int, timeout: float) -> Answer | None:
        try:
            message = self._answers[rank].receive(timeout)
        except ConnectionError as error:
            self._lose(str(error))
        answer = None if message is None else decode_answer(message)
        if isinstance(answer, Failed):
            if answer.fatal:
                self._lose(answer.message, answer)
            self._failures.setdefault(answer.step, {})[rank] = answer
        elif isinstance(answer, Movements):
            self._moves.add(rank, answer.moved)
        elif isinstance(answer, MoverReport):
            self._reports[rank] = answer.report
        return answer

    def _look_at_others(self) -> None:
        """A rank that failed alone in a step leaves the others waiting for it, or one step ahead of
        it.
        """
        for rank, ring in enumerate(self._answers):
            while rank != self._ranks.reader and ring.ready():
                self._receive(rank, 0.0)
        for step, failures in self._failures.items():
            first = min(failures.values(), key=lambda failed: failed.at)
            if step <= self._answered or time.monotonic() - first.at > GRACE:
                self._lose(first.message, first)

    def _failed_everywhere(self, answer: Failed) -> Exception:
        """A plan that no rank could compute leaves all ranks usable; one that some could, does not."""
        failures = self._failures[answer.step]
        deadline = time.monotonic() + GRACE
        for rank in range(self._ranks.size):
            while rank not in failures:
                if time.monotonic() > deadline:
                    self._lose(answer.message, answer)
                self._receive(rank, LOOK)
        del self._failures[answer.step]
        log.error("step %d:\n%s", answer.step, answer.trace or answer.message)
        return PenstockError(answer.message)

    # Losses ---------------------------------------------------------------------------------------

    def on_exit(self, gone: Exit) -> None:
        """From the thread that watches: nobody waits for a rank that is gone."""
        self._exit = gone
        self._fence(gone.how)

    def _fence(self, reason: str) -> None:
        for fence in self._fences:
            fence.end(reason)

    def _lose(self, reason: str, answer: Failed | None = None) -> NoReturn:
        """End all ranks and raise what the first of them that failed said."""
        self._fence(reason)
        self._members.all_ended(GRACE)
        failures = [*self._last_words(), *([answer] if answer else [])]
        causes = [failed for failed in failures if not failed.derived]
        first = min(causes, key=lambda failed: failed.at, default=None)
        gone = self._exit
        # Whatever the clocks say, a rank that is gone said its last words before.
        if first is not None and (gone is None or first.rank == gone.rank or first.at < gone.at):
            where = f" in step {first.step}" if first.step else ""
            if first.trace:
                log.error("rank %d failed%s:\n%s", first.rank, where, first.trace)
            reason = f"rank {first.rank} failed{where}: {first.message}"
        elif gone is not None:
            reason = gone.how
        self._members.end(0.0)
        self._lost = WorkersLostError(reason)
        raise self._lost

    def _last_words(self) -> list[Failed]:
        """Failures that lie unread in the rings; what else is there is of no use any more."""
        found = []
        for ring in self._answers:
            while ring.ready() and (message := ring.receive(0.0)) is not None:
                answer = decode_answer(message)
                if isinstance(answer, Failed):
                    found.append(answer)
        return found


class RanksTicket:
    def __init__(self, executor: RanksExecutor, step: int) -> None:
        self._executor = executor
        self._step = step

    def result(self, timeout: float | None = None) -> StepResult:
        """Once: the executor keeps nothing that was fetched."""
        return self._executor.await_result(self._step, timeout)
