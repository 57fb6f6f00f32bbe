"""Selects the sequences of a step and the number of tokens of each: decodes, prefill chunks, newly
admitted sequences, drafts.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock._native import PromptBudget
from penstock.core import FinishReason
from penstock.kv import KvCache
from penstock.scheduler.drafting import Drafter, append_drafts
from penstock.scheduler.grammar_room import GrammarRoom
from penstock.scheduler.growth import Growth
from penstock.scheduler.intake import Intake
from penstock.scheduler.limits import Limits
from penstock.scheduler.prefixes import Prefixes
from penstock.scheduler.rows import Work, plan_state
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.sequence_table import SequenceTable

LONGEST_HANG = 30.0
"""Maximum seconds that a stalled tier may hold blocks that a sequence needs while nothing else can
run. The sequence then ends with an error.
"""
HANGS = "a KV tier does not answer and holds the blocks that this request needs"


class Selection:
    """Sequence selection. A selected sequence counts as in flight at once, so that no other
    sequence preempts it.

    The first running sequence may preempt all others, so at least one sequence always advances.
    Admission allocates blocks for all known tokens (in a group with a sliding window, for one
    step). Therefore only growth can run out of blocks.
    """

    def __init__(
        self,
        limits: Limits,
        intake: Intake,
        roster: SequenceTable,
        kv: KvCache,
        prefixes: Prefixes,
        drafter: Drafter,
        prompts: PromptBudget,
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._roster = roster
        self._kv = kv
        self._prefixes = prefixes
        self._drafter = drafter
        self._prompts = prompts
        self._clock = clock
        self._growth = Growth(intake, roster, kv, prefixes)
        self._grammars = GrammarRoom()
        self.blocked = False
        """Whether waiting sequences lack slots or blocks. False if they lack only token budget."""

    def next_step(self) -> Work:
        """Work for the next step: one token for each decoding sequence, then prefill chunks, newly
        admitted sequences and drafts.
        """
        work: Work = []
        self._grammars.clear()
        if self._kv.windowed:
            self._growth.reserve_chunks(self._limits.max_num_batched_tokens)
        self._decode(work)
        budget = self._limits.max_num_batched_tokens - len(work)
        prompts = self._prompt_budget(work, budget)
        left = self._continue_prompts(work, prompts)
        self._roster.sweep()
        self.blocked = False
        if self._roster.waiting and left and self._roster.slots:
            left = self._admit(work, left)
        self.blocked |= not self._roster.slots
        if self._kv.has_state and self._kv.hasher is not None:
            roster = self._roster
            self._prefixes.expect(roster.waiting[: roster.num_slots], roster.running)
        if self._drafter.active:
            most = budget - (prompts - left)
            append_drafts(work, most, self._drafter, self._kv, self._idle(work))
        return work

    def _prompt_budget(self, decodes: Work, budget: int) -> int:
        """Maximum number of prompt tokens in a step with `decodes`, which bounds the time between
        two tokens of a client. An offline batch has no such limit, because no client waits for
        single tokens.
        """
        if not decodes or not self._limits.arrivals:
            return budget
        return self._prompts.tokens(len(decodes), budget)

    def decode_ahead(self) -> Work:
        """Work for a step planned ahead: one token for each sequence that still decodes after the
        plan in flight.

        Empty if the next step could do more with the result of the plan in flight: continue a
        prompt, admit a sequence, verify drafts, sample after a late mask, or preempt.
        """
        roster = self._roster
        if self._drafter.active or (roster.waiting and roster.slots):
            return []
        chosen: list[Sequence] = []
        for seq in roster.running:
            if seq.retries and (seq.in_flight or self._late(seq)):
                continue
            if not seq.in_flight:
                return []
            if seq.limit_in_flight():
                if roster.waiting:
                    return []
            elif seq.remaining() > 1:
                return []
            else:
                chosen.append(seq)
        if not self._have_room(chosen):
            return []
        work: Work = []
        for seq in chosen:
            self._join(work, seq, 1)
        return work

    def _join(self, work: Work, seq: Sequence, length: int) -> int:
        """Add a row of `length` tokens to the step; returns its number of tokens. It is smaller, or
        0, if too few state slots are free until plans in flight are applied.
        """
        if self._kv.has_state:
            length = plan_state(self._kv, seq, length, self._idle(work) - 1)
            if not length:
                return 0
        seq.in_flight += 1
        work.append((seq, length, ()))
        return length

    def _idle(self, work: Work) -> int:
        """Number of running sequences outside `work`. Each may need a state slot for its next row,
        so checkpoints and drafts leave as many free.
        """
        return max(len(self._roster.running) - len(work), 0)

    def _have_room(self, decoding: list[Sequence]) -> bool:
        """Whether each sequence has a block for one more token, and a state slot. If a pool fills
        up midway, the next step uses the blocks allocated up to then.
        """
        if self._kv.has_state and self._kv.states.available < len(decoding):
            return False
        return all(
            seq.table.capacity > seq.scheduled or self._kv.grow(seq.table, seq.scheduled + 1)
            for seq in decoding
        )

    # Decodes --------------------------------------------------------------------------------------

    def _decode(self, work: Work) -> None:
        share = self._share()
        for seq in self._roster.running:
            if seq.in_flight or seq.slot < 0 or seq.remaining() != 1 or self._late(seq):
                continue
            if not seq.registered and not self._grammars.takes(seq):
                continue
            if seq.table.capacity > seq.scheduled or self._growth.grow(seq, seq.scheduled + 1):
                self._join(work, seq, 1)
                if len(work) == share:
                    break

    def _late(self, seq: Sequence) -> bool:
        """Whether the sequence's grammar mask was late and its retry is not due yet."""
        return bool(seq.retries) and self._clock() < seq.retry_at

    def _share(self) -> int:
        """Maximum number of decodes in one plan. With several pipeline stages the decodes are
        divided equally among the plans in flight.
        """
        running, stages = self._roster.running, self._limits.stages
        if stages == 1:
            return len(running)
        return -(-sum(seq.computed + 1 == len(seq.tokens) for seq in running) // stages)

    # Prompts --------------------------------------------------------------------------------------

    def _continue_prompts(self, work: Work, budget: int) -> int:
        for seq in self._roster.running:
            if not budget:
                break
            if not seq.in_flight and seq.slot >= 0 and seq.remaining() > 1:
                budget -= self._chunk(work, seq, budget)
        return budget

    def _chunk(self, work: Work, seq: Sequence, budget: int) -> int:
        """Schedule the next prefill chunk of a sequence and return its length in tokens. The token
        budget, the allocated blocks and the loads in flight limit it; 0 if nothing can be computed
        now.
        """
        room = seq.table.capacity - seq.scheduled
        length = min(self._prefixes.computable(seq), room, budget)
        if length <= 0 or not (seq.registered or self._grammars.takes(seq)):
            return 0
        if length := self._join(work, seq, length):
            self._prefixes.scheduling(seq, seq.scheduled + length)
        return length

    def _admit(self, work: Work, budget: int) -> int:
        """Admit waiting sequences in scheduling order; returns the remaining token budget. A
        sequence that waits for a shared prefix, or for blocks held by a stalled load, may be
        overtaken by later ones.

        One block for each running sequence stays free. Otherwise growth would preempt the new
        sequence at once.
        """
        roster, admitted, stuck = self._roster, False, None
        for seq in roster.waiting:
            if not budget or not roster.slots:
                break
            found = self._prefixes.find(seq)
            if found is None:
                continue
            known, spare = len(seq.tokens), len(roster.running)
            if not self._kv.admit(seq.table, seq.digests, found.hits, known, spare, seq.load.end):
                self.blocked = True
                if not (stalled_for := self._prefixes.tiers.stalled_for):
                    break
                if stalled_for > LONGEST_HANG and not roster.running:
                    stuck = seq
                continue
            roster.run(seq)
            self._prefixes.admitted(seq, found)
            admitted = True
            budget -= self._chunk(work, seq, budget)
        if admitted:
            roster.waiting = [seq for seq in roster.waiting if seq.slot < 0]
        if stuck is not None and not roster.running:
            roster.finish(stuck, FinishReason.ERROR, HANGS)
        return budget
