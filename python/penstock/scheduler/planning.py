"""Builds a step plan, which is a set of integer columns, from the chosen sequences."""

from __future__ import annotations

from array import array

from penstock.core import StepPlan
from penstock.core.plan import LAST_SAMPLED
from penstock.kv import RowState
from penstock.scheduler.rows import Work
from penstock.scheduler.sequence import Sequence


def build_plan(step: int, work: Work, block_size: int) -> StepPlan:
    """Build the plan and advance each sequence's `scheduled` and `sampling` counters."""
    plan = StepPlan(step)
    tokens, drafted, scored = plan.tokens, False, False
    for seq, length, drafts in work:
        start = seq.scheduled
        end = start + length
        known = len(seq.tokens)
        samples = end == known + seq.sampling
        if drafts:
            drafted = samples = True
        if seq.prompt_logprobs >= 0:
            scored = True
        if not seq.registered:
            _register(plan, seq)
        plan.slots.append(seq.slot)
        plan.starts.append(start)
        plan.lengths.append(length)
        plan.sample.append(samples)
        if length == 1:
            tokens.append(seq.tokens[start] if start < known else LAST_SAMPLED)
        else:
            tokens.extend(seq.tokens[start:end])
            tokens.extend(drafts)
        _add_blocks(plan, seq, -(-end // block_size))
        if seq.table.state.rows:
            _add_state(plan, seq.table.state.rows[-1])
        seq.scheduled = end
        seq.sampling += samples
    if drafted:
        plan.drafts = array("i", [len(drafts) for _, _, drafts in work])
    if scored:
        _fill_targets(plan, work)
    return plan


def _register(plan: StepPlan, seq: Sequence) -> None:
    """Add the sequence's registration (slot, sampling parameters, grammar, adapter) to the plan.
    Sequences with the same grammar share one copy of its text.
    """
    number, grammar = 0, seq.request.grammar
    if grammar:
        if grammar not in plan.grammars:
            plan.grammars.append(grammar)
        number = plan.grammars.index(grammar) + 1
    plan.registrations.append(seq.registration(number))
    seq.registered = True


def _add_blocks(plan: StepPlan, seq: Sequence, entries: int) -> None:
    """Add the block table entries that the sequence gained since its last plan, up to `entries`."""
    table = seq.table
    kept = table.sent
    for blocks in table.groups:
        plan.kept.append(kept)
        if entries > kept:
            plan.added.extend(blocks[kept:entries])
        plan.added_offsets.append(len(plan.added))
    if entries > kept:
        table.sent = entries


def _add_state(plan: StepPlan, state: RowState) -> None:
    if not plan.save_offsets:
        plan.save_offsets.append(0)
    plan.state_from.append(state.source)
    plan.state_to.append(state.target)
    for position, slot in state.saves:
        plan.save_rows.append(position - state.start)
        plan.save_slots.append(slot)
    plan.save_offsets.append(len(plan.save_rows))


def _fill_targets(plan: StepPlan, work: Work) -> None:
    for (seq, length, _), start in zip(work, plan.starts, strict=True):
        wanted = 0
        if seq.prompt_logprobs >= 0:
            last = min(start + 1 + length, seq.prompt_len)
            plan.targets.extend(seq.tokens[start + 1 : last])
            wanted = max(last - start - 1, 0)
        plan.targets.extend([-1] * (length - wanted))
