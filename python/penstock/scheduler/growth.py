"""Block allocation for growing sequences. If a pool is full, later sequences are preempted."""

from __future__ import annotations

from penstock.core import FinishReason
from penstock.kv import KvCache
from penstock.scheduler.intake import Intake
from penstock.scheduler.prefixes import Prefixes
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.sequence_table import SequenceTable


class Growth:
    def __init__(
        self, intake: Intake, roster: SequenceTable, kv: KvCache, prefixes: Prefixes
    ) -> None:
        self._intake = intake
        self._roster = roster
        self._kv = kv
        self._prefixes = prefixes

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Allocate blocks for the first `tokens` tokens of a sequence. If a pool is full, preempt
        sequences that come later in scheduling order, the last one first. Returns False if no
        blocks are available in this step, or if the sequence was ended because it can never fit.

        A sequence that gets no new blocks keeps its present blocks until an earlier sequence needs
        them. No further sequence is preempted while blocks of preempted ones are being offloaded.
        """
        while not self._kv.grow(seq.table, tokens):
            if self._prefixes.offloading:
                return False
            last = (
                other
                for other in reversed(self._roster.running)
                if not other.in_flight and other.slot >= 0
            )
            victim = next(last, seq)
            if victim.order > seq.order:
                self._roster.preempt(victim)
                continue
            if fault := self._intake.too_large(tokens):
                self._roster.finish(seq, FinishReason.UNFIT, error=fault)
            return False
        return True

    def reserve_chunks(self, budget: int) -> None:
        """Allocate blocks for the running sequences' next prefill chunks, in scheduling order and
        within `budget` tokens. Needed if a KV group has a sliding window, because admission then
        allocates blocks for one step only. Call it before any sequence joins the step: a sequence
        in the step cannot be preempted.
        """
        for seq in self._roster.running:
            if seq.in_flight or seq.slot < 0 or seq.remaining() == 1:
                continue
            length = min(self._prefixes.computable(seq), budget)
            if length > 0:
                budget -= length
                self.grow(seq, seq.scheduled + length)
        self._roster.sweep()
