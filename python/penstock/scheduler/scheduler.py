"""The scheduler's interface. It plans steps with a token budget, chunked prefill, preemption by
recomputation and shared prefixes.

    add, cancel        at any time
    schedule()         -> StepPlan or None; several plans can be in flight
    apply(plan, result), fail(plan, message)
    take_outputs()     -> output rows for the clients since the last call

The last output row of every added request has a finish reason other than NONE; earlier rows have
NONE.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock._native import PromptBudget
from penstock.core import (
    EngineStats,
    FinishReason,
    Request,
    StepOutputs,
    StepPlan,
    StepResult,
)
from penstock.kv import KvCache
from penstock.kv.tiers import Tiers
from penstock.scheduler.drafting import Drafter, NoDrafts
from penstock.scheduler.intake import Intake
from penstock.scheduler.limits import Limits
from penstock.scheduler.output_buffer import OutputBuffer
from penstock.scheduler.planning import build_plan
from penstock.scheduler.prefixes import Prefixes
from penstock.scheduler.progress import Progress
from penstock.scheduler.rows import Work
from penstock.scheduler.selection import Selection
from penstock.scheduler.sequence_table import SequenceTable

AHEAD = 2
"""Maximum number of plans in flight without pipeline stages: the running plan, and one planned
ahead.
"""


class Scheduler:
    def __init__(
        self,
        limits: Limits,
        kv: KvCache,
        clock: Callable[[], float],
        tiers: Tiers | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.limits = limits
        self.tiers = tiers if tiers is not None else Tiers()
        self._kv = kv
        self._outbox = OutputBuffer(clock)
        self._prefixes = Prefixes(kv, self.tiers, clock)
        seats = kv.seats(limits.max_num_seqs)
        self._roster = SequenceTable(seats, kv, self._prefixes, self._outbox)
        self._intake = Intake(limits, kv)
        self._prompts = PromptBudget()
        self._selection = Selection(
            limits,
            self._intake,
            self._roster,
            kv,
            self._prefixes,
            drafter or NoDrafts(),
            self._prompts,
            clock,
        )
        self._progress = Progress(kv, self._prefixes, self._roster, self._outbox, clock)
        self._clock = clock
        self._in_flight: dict[int, Work] = {}
        self._step = 0
        self._step_seconds = 0.0
        self._masks: list[float] = [0, 0.0, 0.0]

    # Requests -------------------------------------------------------------------------------------

    def add(self, request: Request, *, cancelled: bool = False) -> None:
        """Queue a request, or finish it at once: CANCELLED if `cancelled`, UNFIT if it can never
        run, REJECTED if the queue is full (`max_queue` requests beyond those that fill all slots).
        Ids of unfinished requests must be distinct.
        """
        seq, queued = self._intake.sequence(request), len(self._roster) - self._roster.num_slots
        self._roster.wait(seq)
        if cancelled:
            self._roster.finish(seq, FinishReason.CANCELLED)
        elif fault := self._intake.refusal(request):
            self._roster.finish(seq, FinishReason.UNFIT, fault)
        elif queued >= self.limits.max_queue:
            fault = f"{queued} requests are waiting already, the limit of --max-num-queued-reqs"
            self._roster.finish(seq, FinishReason.REJECTED, fault)

    def cancel(self, request_id: int) -> None:
        """Finish a request as CANCELLED. Unknown ids are ignored."""
        seq = self._roster.get(request_id)
        if seq is not None:
            self._roster.finish(seq, FinishReason.CANCELLED)
            self._roster.sweep()

    def cancel_all(self) -> None:
        for request_id in self._roster.ids():
            self.cancel(request_id)

    # Steps ----------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plan the next step. Returns None if there is nothing to compute, or if the next step
        depends on the result of a plan in flight.
        """
        if self.tiers.busy:
            self._advance_loaded()
        if self._roster.waiting and self.limits.max_wait < math.inf:
            self._expire()
        if not self._in_flight or self.limits.stages > 1:
            work = self._selection.next_step()
        elif len(self._in_flight) < AHEAD and not self._keeps_waiting():
            work = self._selection.decode_ahead()
        else:
            work = []
        if not work:
            return None
        self._step += 1
        self._in_flight[self._step] = work
        return build_plan(self._step, work, self._kv.block_size)

    def pause(self) -> StepPlan:
        """A plan without sequences. No other plan may be in flight. Do not `apply` its result."""
        self._step += 1
        return StepPlan(self._step)

    def _keeps_waiting(self) -> bool:
        """Whether the last step was long enough that planning ahead would noticeably delay new
        requests.
        """
        return self.limits.arrivals and self._step_seconds >= self.limits.ahead_seconds

    def _expire(self) -> None:
        """Reject requests that exceed the maximum queue time. A request that was admitted before is
        exempt. If slots and blocks are free, requests only wait for earlier prompts, so none is
        rejected.
        """
        if not self._selection.blocked:
            return
        oldest = self._clock() - self.limits.max_wait
        for seq in list(self._roster.waiting):
            request = seq.request
            if request.expires and request.arrived < oldest and seq.first_schedule < 0:
                fault = f"its turn did not come within {self.limits.max_wait:g} s"
                self._roster.finish(seq, FinishReason.REJECTED, f"{fault} (--max-queue-wait)")

    def _advance_loaded(self) -> None:
        self.tiers.poll()
        for seq in self._roster.running:
            if seq.load.lost:
                if not seq.in_flight:
                    self._roster.wait_again(seq)
            elif seq.load.pending and not seq.in_flight:
                self._prefixes.advance(seq)
        self._roster.sweep()

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Advance the sequences of a plan by its result. Callers must apply plans in step order."""
        work, self._step_seconds = self._in_flight.pop(plan.step), result.seconds
        prompts = [length for _, length, drafts in work if length > 1 + len(drafts)]
        self._prompts.observe(len(work) - len(prompts), sum(prompts), result.seconds)
        self._masks = [sum(both) for both in zip(self._masks, result.masks, strict=True)]
        self._progress.apply(plan, work, result)

    def fail(self, plan: StepPlan, message: str) -> bool:
        """End the requests of a failed plan with ERROR. Returns whether any of them was still live.

        A later plan that was planned ahead fails too, because the state of its slots is undefined.
        That plan contains no other requests, so its failure ends no further one.
        """
        work = self._in_flight.pop(plan.step)
        alive = [seq for seq, *_ in work if not seq.ended]
        for seq, *_ in work:
            self._roster.drop_plan(seq)
        for seq in alive:
            self._roster.finish(seq, FinishReason.ERROR, message)
        self._roster.sweep()
        return bool(alive)

    def next_retry(self) -> float:
        """Seconds until sampling is retried for a sequence whose grammar mask was late; infinite if
        there is none.
        """
        due = (seq.retry_at for seq in self._roster.running if seq.retries and not seq.in_flight)
        return max(min(due, default=math.inf) - self._clock(), 0.0)

    # Reports --------------------------------------------------------------------------------------

    def has_requests(self) -> bool:
        return bool(self._roster)

    def has_outputs(self) -> bool:
        return self._outbox.filled

    def take_outputs(self) -> StepOutputs:
        """Output rows since the last call, in order of creation."""
        return self._outbox.take()

    def stats(self) -> EngineStats:
        roster, prefixes = self._roster, self._prefixes
        return EngineStats(
            running=len(roster.running),
            waiting=len(roster.waiting),
            blocks_used=self._kv.used,
            blocks_total=self._kv.num_blocks,
            preemptions=roster.preemptions,
            prefix_query_tokens=prefixes.query_tokens,
            prefix_hit_tokens=prefixes.hit_tokens,
            masks=int(self._masks[0]),
            mask_seconds=self._masks[1],
            mask_wait_seconds=self._masks[2],
        )

    def check(self) -> None:
        """Audit blocks, slots and claims. Raises PoolCorruptError if they are inconsistent. The
        cost grows with the number of blocks, so do not call it in every step.
        """
        self._roster.check()
