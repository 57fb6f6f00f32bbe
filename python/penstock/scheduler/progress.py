"""Applies step results: advances sequences, publishes KV blocks, adds output rows for clients."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from penstock.core import FinishReason, StepPlan, StepResult
from penstock.core.plan import LATE_MASK, NO_TOKEN, NOT_FINITE
from penstock.kv import KvCache
from penstock.scheduler.output_buffer import OutputBuffer
from penstock.scheduler.prefixes import Prefixes
from penstock.scheduler.rows import Work
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.sequence_table import SequenceTable

FAULTS = {
    NOT_FINITE: (
        FinishReason.ERROR,
        (
            "the model's numbers for this request are infinite or not a number: its weights are "
            "damaged, or too large for this arithmetic"
        ),
    ),
    NO_TOKEN: (
        FinishReason.UNFIT,
        "its grammar became too complex to be followed, or leaves no token",
    ),
}


class Progress:
    def __init__(
        self,
        kv: KvCache,
        prefixes: Prefixes,
        roster: SequenceTable,
        outbox: OutputBuffer,
        clock: Callable[[], float],
    ) -> None:
        self._kv = kv
        self._prefixes = prefixes
        self._roster = roster
        self._outbox = outbox
        self._clock = clock

    def apply(self, plan: StepPlan, work: Work, result: StepResult) -> None:
        """Advance sequences, publish full blocks, name state checkpoints, release blocks behind a
        window, and emit outputs.

        KV computed for a sequence that has already ended is valid, and is published too.
        """
        counts, tokens = result.counts, result.tokens
        windowed, has_state = self._kv.windowed, self._kv.has_state
        at = 0
        for index, (seq, length, drafts) in enumerate(work):
            count = counts[index]
            sampled = tokens[at : at + count]
            at += count
            if count:
                length -= self._drawn(seq, len(drafts), sampled)
            seq.computed += length
            if seq.load.pending:
                self._prefixes.advance(seq)
            if seq.computed >= seq.publish_at:
                self._prefixes.publish(seq)
            if has_state:
                self._kv.states.apply(seq.table.state, seq.computed, seq.digests, seq.checkpoints)
            if windowed:
                self._kv.give_back(seq.table, seq.computed)
            if seq.ended:
                self._roster.drop_plan(seq)
                continue
            seq.in_flight -= 1
            if index in result.prompt_logprobs:
                seq.prompt_rows.extend(result.prompt_logprobs[index])
            if count or index in result.vectors:
                self._answer(seq, sampled, index, result)
        self._roster.sweep()

    def _drawn(self, seq: Sequence, drafts: int, sampled: array[int]) -> int:
        """Append the sampled tokens. Returns how many of the row's planned tokens do not count as
        computed: rejected ones of its `drafts`, or the last token and all drafts if the grammar
        mask was not ready in time.
        """
        seq.sampling -= 1
        if sampled[0] == LATE_MASK:
            # The grammar mask may take long. Without this sequence's claims, other sequences need
            # not wait for it.
            self._prefixes.unclaim(seq)
            return seq.not_drawn(drafts, self._clock())
        seq.retries = 0
        seq.tokens.extend(sampled)
        if not drafts:
            return 0
        # All sampled tokens but the last are accepted drafts.
        rejected = drafts + 1 - len(sampled)
        seq.scheduled -= rejected
        return rejected

    def _pooled(self, seq: Sequence, vector: bytes) -> None:
        """Emit the vector of a pooled sequence and end the sequence. An empty vector means that
        numbers were not finite.
        """
        if vector:
            self._outbox.vector(seq, vector)
            self._roster.remove(seq)
        else:
            self._roster.finish(seq, *FAULTS[NOT_FINITE])

    def _answer(self, seq: Sequence, sampled: array[int], index: int, result: StepResult) -> None:
        """Emit the tokens up to the one that ends the sequence, or a pooled sequence's vector."""
        if not sampled:
            self._pooled(seq, result.vectors[index])
            return
        if sampled[0] == LATE_MASK:
            return
        if fault := FAULTS.get(sampled[-1]):
            self._roster.finish(seq, *fault)
            return
        finish, stop_token = FinishReason.NONE, -1
        first = len(seq.tokens) - len(sampled)
        known = first
        for token in sampled:
            known += 1
            if token in seq.stops and known > seq.min_length:
                finish, stop_token = FinishReason.STOP, token
                break
            if known >= seq.length_limit:
                finish = FinishReason.LENGTH
                break
        if known < len(seq.tokens):
            sampled = sampled[: known - first]
        rows = result.logprobs.get(index)
        self._outbox.tokens(seq, sampled, finish, stop_token, rows)
        if finish:
            self._roster.remove(seq)
