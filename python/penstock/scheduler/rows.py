"""Rows of a step: the part of each sequence. The state slots of a row are in the sequence's table,
where the newest row is that of the plan being made.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.kv import KvCache
from penstock.scheduler.checkpoints import checkpoints_within
from penstock.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """The part of one sequence in a step."""

    seq: Sequence
    length: int
    """Number of tokens to compute, drafts included."""
    drafts: tuple[int, ...] = ()


Work = list[Row]
"""Rows of a step, at most one for each sequence."""


def make_row(kv: KvCache, seq: Sequence, length: int, spare: int = 0) -> Row | None:
    """A row of the next `length` tokens of a sequence; shorter, or None, if too few state slots are
    free until plans in flight are applied. Checkpoints leave at least `spare` slots free.

    If a grammar mask is late, the last token of a row that samples is taken back. So the state
    before that token is kept.
    """
    if not kv.has_state:
        return Row(seq, length)
    start, end = seq.scheduled, seq.scheduled + length
    samples = end == len(seq.tokens) + seq.sampling
    ends = (end - 1,) if samples and seq.request.grammar else ()
    checkpoints = checkpoints_within(kv, seq.checkpoints, start, end)
    state = kv.states.plan(
        seq.table.state, start, end, ends=ends, checkpoints=checkpoints, spare=spare
    )
    if state is not None:
        return Row(seq, length)
    return make_row(kv, seq, length - 1, spare) if ends and length > 1 else None


def with_drafts(kv: KvCache, row: Row, drafts: tuple[int, ...], spare: int) -> Row:
    """The row of one token, followed by `drafts`, or by as many of them as leave `spare` state
    slots free.
    """
    if kv.has_state:
        seq = row.seq
        drafts = drafts[: max(kv.states.available - spare, 0)]
        end = seq.scheduled + 1 + len(drafts)
        checkpoints = checkpoints_within(kv, seq.checkpoints, seq.scheduled, end)
        kv.states.extend(seq.table.state, len(drafts), sorted(checkpoints))
    return Row(row.seq, 1 + len(drafts), drafts)
