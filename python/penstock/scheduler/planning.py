"""Turns "these sequences, so many tokens each" into the columns of a StepPlan."""

from __future__ import annotations

from penstock.core import StepPlan
from penstock.scheduler.sequence import Sequence

Work = list[tuple[Sequence, int]]
"""Sequences of a step and how many tokens each computes."""


def build_plan(step: int, work: Work, block_size: int) -> StepPlan:
    plan = StepPlan(step)
    tokens, blocks, offsets = plan.tokens, plan.blocks, plan.block_offsets
    for seq, length in work:
        start = seq.num_computed
        end = start + length
        known = len(seq.tokens)
        if not seq.registered:
            plan.registrations.append(seq.slot_params())
            seq.registered = True
        plan.slots.append(seq.slot)
        plan.starts.append(start)
        plan.lengths.append(length)
        plan.sample.append(end == known)
        if length == 1:
            tokens.append(seq.tokens[start])
        else:
            tokens.extend(seq.tokens[start:end])
        table = seq.blocks
        needed = -(-end // block_size)
        blocks.extend(table if needed == len(table) else table[:needed])
        offsets.append(len(blocks))
    if any(seq.prompt_logprobs >= 0 for seq, _ in work):
        _fill_targets(plan, work)
    return plan


def _fill_targets(plan: StepPlan, work: Work) -> None:
    for seq, length in work:
        wanted = 0
        if seq.prompt_logprobs >= 0:
            first = seq.num_computed + 1
            last = min(first + length, seq.prompt_len)
            plan.targets.extend(seq.tokens[first:last])
            wanted = max(last - first, 0)
        plan.targets.extend([-1] * (length - wanted))
