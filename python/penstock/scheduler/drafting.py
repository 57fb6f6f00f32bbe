"""Speculative decoding: drafts of the next tokens, which the same step verifies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from penstock.kv import KvCache
from penstock.scheduler.rows import Work, plan_draft_states


class Drafter(Protocol):
    active: bool
    """Whether the drafter may propose drafts. If so, no step is planned before the previous step's
    result, because drafts depend on the tokens sampled in that step.
    """

    def propose(self, tokens: array[int], most: int) -> Sequence[int]:
        """Guess at most `most` tokens that will follow `tokens`."""


class NoDrafts:
    active = False

    def propose(self, tokens: array[int], most: int) -> Sequence[int]:
        return ()


def append_drafts(
    work: Work, budget: int, drafter: Drafter, kv: KvCache, spare_states: int
) -> None:
    """Append draft tokens to the decodes in `work`: at most `budget` tokens in total, and only
    tokens that get KV blocks without preemption, and state slots that leave `spare_states` free.
    """
    for at, (seq, length, _) in enumerate(work):
        if length != 1 or seq.remaining() != 1:
            continue
        known = len(seq.tokens)
        most = min(budget, seq.length_limit - known - 1)
        if most <= 0:
            continue
        drafts = tuple(drafter.propose(seq.tokens, most))
        if known + len(drafts) > seq.table.capacity:
            kv.grow(seq.table, known + len(drafts))
        drafts = drafts[: max(seq.table.capacity - known, 0)]
        if kv.has_state:
            drafts = plan_draft_states(kv, seq, drafts, spare_states)
        work[at] = seq, 1 + len(drafts), drafts
        budget -= len(drafts)
