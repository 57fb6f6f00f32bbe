"""Ranks as processes of this host: one ring takes plans to all, each rank's own ring brings its answers."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.config import EngineConfig
from penstock.core import PenstockError, Ranks, RankTask, StepPlan, StepResult, WorkerFacts
from penstock.core.answers import Answer, Computed, Failed, Ready, decode_answer
from penstock.core.codec import encode_plan
from penstock.executor.contract import WorkersLostError
from penstock.executor.processes import Exit, Processes
from penstock.executor.shared import SharedFiles
from penstock.executor.wiring import wire

if TYPE_CHECKING:
    from penstock._native import Fence, RingReader, RingWriter

LEAST_ANSWER = 1 << 16
"""Bytes of an answer that every rank may give: facts, or a traceback."""
PATIENCE = 600.0
"""Seconds that ranks may leave plans lying; there are never more plans than slots."""
LOOK = 0.2
"""Seconds after which a wait for the reading rank looks at the others' answers."""
GRACE = 0.5
"""Seconds that the other ranks get to fail in the same step, or to say why they end."""

log = logging.getLogger("penstock.executor")


class MultiprocExecutor:
    """`worker` names the module that is run for each rank. Returns when all are ready.

    Raises PenstockError with the first rank's reason when one cannot load its part.
    """

    def __init__(self, worker: str, ranks: Ranks, config: EngineConfig, directory: Path) -> None:
        self.depth = ranks.pp
        self._ranks = ranks
        self._lost: WorkersLostError | None = None
        self._exit: Exit | None = None
        self._results: dict[int, StepResult | Exception] = {}
        self._failures: dict[int, dict[int, Failed]] = {}
        self._answered = 0
        self._fences: list[Fence] = []
        self._plans: RingWriter
        self._answers: list[RingReader] = []
        self._processes = self._start(worker, config, directory)
        try:
            self.facts = self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks, in their order."""
        return self._processes.pids

    def submit(self, plan: StepPlan) -> MultiprocTicket:
        self.check()
        try:
            self._plans.send(encode_plan(plan))
        except ConnectionError as error:
            self._lose(str(error))
        return MultiprocTicket(self, plan.step)

    def check(self) -> None:
        if self._lost is None and self._exit is not None:
            self._lose(self._exit.how)
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        self._processes.end()

    # Starting -------------------------------------------------------------------------------------

    def _start(self, worker: str, config: EngineConfig, directory: Path) -> Processes:
        files = SharedFiles(directory)
        try:
            jobs = self._jobs(files, config)
            files.seal()
            self._open(jobs, files)
            texts = [json.dumps(job) for job in jobs]
            return Processes(worker, texts, files.descriptors, self._on_exit)
        finally:
            files.close()

    def _jobs(self, files: SharedFiles, config: EngineConfig) -> list[dict[str, Any]]:
        ranks = self._ranks
        plans = {**files.ring(ranks.size, self.depth + 1, ranks.plan_bytes), "readers": ranks.size}
        wirings = wire(ranks, files)
        jobs = []
        for rank, (shard, wiring) in enumerate(zip(ranks.shards, wirings, strict=True)):
            reads = rank == ranks.reader
            room = max(ranks.result_bytes if reads else 0, LEAST_ANSWER)
            task = RankTask(rank, reads, config.to_json(), ranks.num_blocks, shard, wiring)
            answers = files.ring(1, self.depth + 2, room)
            jobs.append({"task": asdict(task), "plans": {**plans, "reader": rank}, "answers": answers})
        return jobs

    def _open(self, jobs: list[dict[str, Any]], files: SharedFiles) -> None:
        from penstock._native import Fence, RingReader, RingWriter

        plans = {key: value for key, value in jobs[0]["plans"].items() if key != "reader"}
        self._plans = RingWriter(**plans, patience=PATIENCE)
        self._answers = [RingReader(**job["answers"], reader=0, readers=1) for job in jobs]
        self._fences = [Fence(f"/proc/self/fd/{descriptor}") for descriptor in files.descriptors]

    def _await_ready(self) -> tuple[WorkerFacts, ...]:
        """What each rank says first. One that cannot load says so and ends, which ends this wait too."""
        facts = []
        for rank in range(self._ranks.size):
            answer = None
            while not isinstance(answer, Ready):
                answer = self._receive(rank, LOOK)
            facts.append(answer.facts)
        return tuple(facts)

    # Answers --------------------------------------------------------------------------------------

    def await_result(self, step: int, timeout: float | None) -> StepResult:
        """The result of `step`; older ones are dropped: plans are awaited in their order or not at all."""
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
        return answer

    def _look_at_others(self) -> None:
        """A rank that failed alone in a step leaves the others waiting for it, or one step ahead of it."""
        for rank, ring in enumerate(self._answers):
            if rank != self._ranks.reader and ring.ready():
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

    def _on_exit(self, gone: Exit) -> None:
        """From the thread that watches: nobody waits for a rank that is gone."""
        self._exit = gone
        self._fence(gone.how)

    def _fence(self, reason: str) -> None:
        for fence in self._fences:
            fence.end(reason)

    def _lose(self, reason: str, answer: Failed | None = None) -> NoReturn:
        """End all ranks and raise what the first of them that failed said."""
        self._fence(reason)
        self._processes.all_ended(GRACE)
        failures = [*self._last_words(), *([answer] if answer else [])]
        causes = [failed for failed in failures if not failed.derived]
        first = min(causes, key=lambda failed: failed.at, default=None)
        gone = self._exit
        if first is not None and (gone is None or first.at < gone.at):
            where = f" in step {first.step}" if first.step else ""
            if first.trace:
                log.error("rank %d failed%s:\n%s", first.rank, where, first.trace)
            reason = f"rank {first.rank} failed{where}: {first.message}"
        elif gone is not None:
            reason = gone.how
        self._processes.end(0.0)
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


class MultiprocTicket:
    def __init__(self, executor: MultiprocExecutor, step: int) -> None:
        self._executor = executor
        self._step = step

    def result(self, timeout: float | None = None) -> StepResult:
        """Once: the executor keeps nothing that was fetched."""
        return self._executor.await_result(self._step, timeout)
