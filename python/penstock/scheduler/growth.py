"""Block allocation for growing sequences, with preemption of later ones when a pool is full."""

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
        """Allocate blocks for `tokens` tokens, preempting sequences from the last in order. Returns
        False if the sequence has to wait or has ended.

        A waiting sequence keeps its blocks until an earlier one needs them. While blocks of
        preempted sequences are being offloaded, nothing more is preempted.
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
        """Allocate blocks for the next prefill chunks in groups with a window, in order. This
        happens first because a later sequence cannot be preempted once it is in the step.
        """
        for seq in self._roster.running:
            if seq.in_flight or seq.slot < 0 or seq.remaining() == 1:
                continue
            length = min(self._prefixes.computable(seq), budget)
            if length > 0:
                budget -= length
                self.grow(seq, seq.scheduled + length)
        self._roster.sweep()
