"""From the residual stream to tokens: the rows that a plan wants, their draws and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from penstock.backends.torch.checks import drafts
from penstock.backends.torch.grammars import (
    NEVER,
    Constraint,
    MaskedRow,
    RowMasks,
    allowed_tokens,
    replaced,
    within,
)
from penstock.backends.torch.inputs import to_device
from penstock.backends.torch.kernels import sample
from penstock.backends.torch.rules import Changes, Rules
from penstock.backends.torch.slots import DeviceSlots, Slot, Slots
from penstock.core import LogprobRow, StepPlan, StepResult
from penstock.core.plan import LAST_SAMPLED, LATE_MASK, NOT_FINITE
from penstock.core.pooling import Pooling

HEAD_ROWS = 256
"""Rows that go through the head at once: bounds the memory of logits."""


@dataclass(slots=True)
class Draws:
    """Rows whose tokens are drawn, in plan order; rows of a sequence stand together."""

    rows: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """Where the drawn tokens go in their sequences."""
    sequences: list[int] = field(default_factory=list)
    """Index in the plan."""
    drafts: list[int] = field(default_factory=list)
    """The token planned there; -1 behind the last draft."""
    owners: list[Slot] = field(default_factory=list)
    rules: list[tuple[int, Rules, list[int]]] = field(default_factory=list)
    """Rows whose logits are changed: which of `rows`, by what, after which drafts."""
    masked: list[MaskedRow] = field(default_factory=list)
    expected: list[tuple[Constraint, list[int]]] = field(default_factory=list)
    """Drafts of sequences with a grammar."""
    reads_output: bool = False
    """Whether a draw needs the tokens of all steps before."""
    logprobs: int = -1
    """Most alternatives that a row wants; -1: none wants its log-probability."""
    constrained: bool = False
    """Whether a row has a grammar. All ranks know it, where one has the masks."""

    def only_tokens(self, rows: int) -> bool:
        """Whether a token of each of so many rows is drawn, from logits as they are, and nothing
        else is wanted of them.
        """
        changed = self.rules or self.constrained or self.logprobs >= 0
        return len(self.rows) == rows and not changed


@dataclass(slots=True)
class Scores:
    """Rows whose prompt tokens are scored."""

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    alternatives: list[int] = field(default_factory=list)


Scored = tuple[Tensor, Tensor, Tensor, Tensor]
"""Log-probability [rows], rank [rows], best tokens [rows, k] and theirs [rows, k]."""


@dataclass(slots=True)
class Found:
    """What the device found, on the host once the step is done."""

    tokens: Tensor | None = None
    drawn: Scored | None = None
    scored: Scored | None = None
    vectors: list[Tensor] = field(default_factory=list)


def wanted_draws(plan: StepPlan, slots: Slots, firsts: Sequence[int]) -> Draws:
    """`firsts` has the first row of each sequence on the device."""
    draws, at = Draws(), 0
    for i, number in enumerate(plan.slots):
        slot, length = slots[number], plan.lengths[i]
        at += length
        if not plan.sample[i] or slot.pooling != Pooling.NONE:
            continue
        drafted = plan.tokens[at - drafts(plan, i) : at].tolist()
        ahead = plan.tokens[at - length] == LAST_SAMPLED
        draws.constrained |= slot.has_grammar
        draws.reads_output |= slot.rules.needs_history or slot.constraint is not None
        if drafted and slot.constraint is not None:
            draws.expected.append((slot.constraint, drafted))
        if slot.logprobs is not None:
            draws.logprobs = max(draws.logprobs, slot.logprobs)
        for j in range(len(drafted) + 1):
            inside = length - len(drafted) - 1 + j
            position = plan.starts[i] + inside + 1
            if slot.rules.change(position):
                draws.rules.append((len(draws.rows), slot.rules, drafted[:j]))
            if slot.constraint is not None:
                draws.masked.append(MaskedRow(len(draws.rows), slot.constraint, j, ahead))
            draws.rows.append(firsts[i] + inside)
            draws.slots.append(number)
            draws.positions.append(position)
            draws.sequences.append(i)
            draws.owners.append(slot)
            draws.drafts.append(drafted[j] if j < len(drafted) else -1)
    return draws


def wanted_scores(plan: StepPlan, slots: Slots, firsts: Sequence[int]) -> Scores:
    scores, at = Scores(), 0
    for i, number in enumerate(plan.slots):
        alternatives, length = slots[number].prompt_logprobs, plan.lengths[i]
        targets = plan.targets[at : at + length]
        at += length
        if alternatives is None:
            continue
        for inside, token in enumerate(targets):
            if token >= 0:
                scores.rows.append(firsts[i] + inside)
                scores.tokens.append(token)
                scores.sequences.append(i)
                scores.alternatives.append(alternatives)
    return scores


def draw(
    logits: Tensor,
    finite: Tensor,
    draws: Draws,
    part: range,
    device: DeviceSlots,
    masks: RowMasks,
) -> Tensor:
    """Tokens [rows] int32 of `part` of the draws; NOT_FINITE where the state is not finite,
    LATE_MASK and NO_TOKEN as `masks` says. Where the rules leave none of the tokens that a mask
    allows, the mask alone counts.
    """
    rules = [rule for rule in draws.rules if rule[0] in part]
    allowed = allowed_tokens(masks, part, logits)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, NEVER)
    if rules:
        changes = Changes(logits.shape[1])
        for at, rule, before in rules:
            rule.add(changes, at - part.start, draws.positions[at], before)
        logits = changes.apply(logits)
    own = slice(part.start, part.stop)
    slots, positions = to_device([draws.slots[own], draws.positions[own]], logits.device)
    tokens = sample(logits, *(*device.sampling(slots), positions))
    if allowed is not None:
        tokens = within(allowed, tokens)
    tokens = replaced(tokens, masks.instead, part).masked_fill(~finite, NOT_FINITE)
    return replaced(tokens, masks.undrawn, part)


def note_last(tokens: Tensor, draws: Draws, device: DeviceSlots) -> None:
    """Keep the token that each slot sampled last: the one behind the accepted drafts."""
    ends: dict[int, int] = {}
    starts: dict[int, int] = {}
    for row, slot in enumerate(draws.slots):
        starts.setdefault(slot, row)
        ends[slot] = row
    columns = [draws.drafts, list(ends), list(starts.values()), list(ends.values())]
    planned, slots, first, end = to_device(columns, tokens.device)
    longest = max(ends[slot] - starts[slot] for slot in ends)
    last = first
    going = torch.ones_like(first, dtype=torch.bool)
    for _ in range(longest):
        after = torch.minimum(last + 1, end)
        # A row that was not drawn ends the accepted drafts before it.
        going = going & (tokens[last] == planned[last]) & (last < end)
        going = going & (tokens[after] != LATE_MASK)
        last = torch.where(going, after, last)
    device.last[slots] = tokens[last]


def score(logits: Tensor, tokens: Tensor, alternatives: int) -> Scored:
    """Log-probabilities of `tokens` [rows] and of the most likely ones."""
    norm = torch.logsumexp(logits, 1, keepdim=True)
    chosen = logits.gather(1, tokens.clamp(min=0).long().unsqueeze(1))
    ranks = (logits > chosen).sum(1) + 1
    best, ids = logits.topk(min(alternatives, logits.shape[1]), 1)
    return (chosen - norm).squeeze(1), ranks, ids, best - norm


def result_of(plan: StepPlan, draws: Draws, scores: Scores, found: Found) -> StepResult:
    """The plan's result, from what is on the host by now. Drafts count as long as they are what was
    drawn.
    """
    result = StepResult()
    result.counts.extend([0] * len(plan.slots))
    if found.tokens is not None:
        rows = None if found.drawn is None else _rows(found.drawn)
        _take_draws(draws, found.tokens.tolist(), rows, result)
    if found.scored is not None:
        rows = _rows(found.scored)
        for i, row, wanted in zip(scores.sequences, rows, scores.alternatives, strict=True):
            result.prompt_logprobs.setdefault(i, []).append(_cut(row, wanted))
    return result


def _take_draws(
    draws: Draws, tokens: list[int], logprobs: list[LogprobRow] | None, result: StepResult
) -> None:
    closed: set[int] = set()
    taken: dict[int, tuple[Slot, list[int]]] = {}
    for row, (i, token) in enumerate(zip(draws.sequences, tokens, strict=True)):
        if i in closed:
            continue
        if token != draws.drafts[row]:
            closed.add(i)
        # After drafts that were right, a late mask makes the next one wrong.
        if token == LATE_MASK and result.counts[i]:
            continue
        owner = draws.owners[row]
        if owner.constraint is not None:
            owner.constraint.undrawn |= token == LATE_MASK
        if token >= 0:
            taken.setdefault(i, (owner, []))[1].append(token)
        result.counts[i] += 1
        result.tokens.append(token)
        if logprobs is not None and owner.logprobs is not None and token >= 0:
            result.logprobs.setdefault(i, []).append(_cut(logprobs[row], owner.logprobs))
    for owner, drawn in taken.values():
        owner.rules.accept(drawn)
        if owner.constraint is not None:
            owner.constraint.accept(drawn)


def _rows(scored: Scored) -> list[LogprobRow]:
    own, ranks, ids, best = (column.tolist() for column in scored)
    rows = []
    for logprob, rank, tokens, values in zip(own, ranks, ids, best, strict=True):
        pairs = sorted(zip(tokens, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
        rows.append((logprob, rank, pairs))
    return rows


def _cut(row: LogprobRow, alternatives: int) -> LogprobRow:
    return (row[0], row[1], row[2][:alternatives])
