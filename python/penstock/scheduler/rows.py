"""Rows of a step, one for each sequence, and their state slots for models with sequence state. The
slots of a row are in the sequence's table, where the newest row is that of the plan being made.
"""

from __future__ import annotations

from penstock.kv import KvCache
from penstock.scheduler.checkpoints import checkpoints_within
from penstock.scheduler.sequence import Sequence

Row = tuple[Sequence, int, tuple[int, ...]]
"""The part of one sequence in a step: the number of tokens to compute, drafts included, and the
drafts. A tuple: an object for each row would make planning 64 decodes a tenth slower.
"""
Work = list[Row]
"""Rows of a step, at most one for each sequence."""


def plan_state(kv: KvCache, seq: Sequence, length: int, spare: int) -> int:
    """Allocate the state slots for a row of the next `length` tokens of a sequence; returns the
    row's length. It is smaller, or 0, if too few slots are free until plans in flight are applied.
    Checkpoints leave at least `spare` slots free.

    If a grammar mask is late, the last token of a row that samples is taken back. So the state
    before that token is kept.
    """
    start, end = seq.scheduled, seq.scheduled + length
    samples = end == len(seq.tokens) + seq.sampling
    ends = (end - 1,) if samples and seq.request.grammar else ()
    checkpoints = checkpoints_within(kv, seq.checkpoints, start, end)
    state = kv.states.plan(
        seq.table.state, start, end, ends=ends, checkpoints=checkpoints, spare=spare
    )
    if state is not None:
        return length
    return plan_state(kv, seq, length - 1, spare) if ends and length > 1 else 0


def plan_draft_states(
    kv: KvCache, seq: Sequence, drafts: tuple[int, ...], spare: int
) -> tuple[int, ...]:
    """Allocate the state slots for `drafts` behind the sequence's row of one token. Returns as many
    of the drafts as leave `spare` slots free.
    """
    drafts = drafts[: max(kv.states.available - spare, 0)]
    end = seq.scheduled + 1 + len(drafts)
    checkpoints = checkpoints_within(kv, seq.checkpoints, seq.scheduled, end)
    kv.states.extend(seq.table.state, len(drafts), sorted(checkpoints))
    return drafts
