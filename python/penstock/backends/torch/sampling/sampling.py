"""Sampling: selects the rows of a plan that need logits, samples their tokens, and scores them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add

import torch
from torch import Tensor

from penstock.backends.torch.inputs import to_device
from penstock.backends.torch.kernels import sample
from penstock.backends.torch.sampling.grammars import (
    NEVER,
    Constraint,
    MaskedRow,
    RowMasks,
    allowed_tokens,
    replaced,
    within,
)
from penstock.backends.torch.sampling.logit_processors import RuledRow, changed
from penstock.backends.torch.sampling.slots import DeviceSlots, Slot, Slots
from penstock.core import LogprobRow, StepPlan, StepResult
from penstock.core.plan import LAST_SAMPLED, LATE_MASK, NOT_FINITE
from penstock.core.pooling import Pooling

HEAD_ROWS = 256
"""Maximum rows for which the head computes logits at once. Bounds the memory of logits."""


@dataclass(slots=True)
class Draws:
    """The rows of a step for which tokens are sampled, as columns, in plan order. Rows of a
    sequence (with drafts it has several) are adjacent.
    """

    rows: Sequence[int] = ()
    slots: Sequence[int] = ()
    positions: Sequence[int] = ()
    """Positions of the sampled tokens in their sequences."""
    sequences: Sequence[int] = ()
    """Index of each row's sequence in the plan."""
    drafts: Sequence[int] = ()
    """For each row, the draft token that its sampled token has to confirm; -1 in a sequence's last
    row. Empty if the plan has no drafts.
    """
    owners: Sequence[Slot] = ()
    """Slot of each row. Empty if all sequences are plain."""
    rules: list[RuledRow] = field(default_factory=list)
    masked: list[MaskedRow] = field(default_factory=list)
    expected: list[tuple[Constraint, list[int]]] = field(default_factory=list)
    """Each sequence's grammar and drafts, for sequences that have both."""
    reads_output: bool = False
    """True if sampling needs the results of all previous steps on the host."""
    logprobs: int = -1
    """Highest number of alternatives that a row needs log-probabilities of; -1 if no row
    needs any.
    """
    constrained: bool = False
    """True if a row has a grammar. Known on all ranks, although only the sampling rank has the
    masks.
    """

    @property
    def plain(self) -> bool:
        """True if all rows sample from unmodified logits, independently of each other, and need
        nothing but the token.
        """
        return not (self.rules or self.constrained or self.drafts or self.logprobs >= 0)


@dataclass(slots=True)
class Scores:
    """Rows for which the log-probability of the next prompt token is requested, as columns."""

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    alternatives: list[int] = field(default_factory=list)


Scored = tuple[Tensor, Tensor, Tensor, Tensor]
"""For a token per row: its log-probability [rows] and its rank among all tokens [rows]; then the k
most likely tokens [rows, k] and their log-probabilities [rows, k].
"""


@dataclass(slots=True)
class DeviceResults:
    """Results of a step on the device. Tensors are in host memory, and complete once the step is
    done.
    """

    tokens: Tensor | None = None
    drawn: Scored | None = None
    scored: Scored | None = None
    vectors: list[Tensor] = field(default_factory=list)


def plain_draws(plan: StepPlan, firsts: Sequence[int]) -> Draws:
    """Draws of a plan of plain sequences without drafts. `firsts`: each sequence's first row in the
    device's batch.
    """
    count = len(plan.slots)
    ends = array("i", map(add, plan.starts, plan.lengths))
    if len(plan.tokens) == count == sum(plan.sample):
        return Draws(rows=range(count), slots=plan.slots, positions=ends, sequences=range(count))
    drawn = [i for i in range(count) if plan.sample[i]]
    return Draws(
        rows=[firsts[i] + plan.lengths[i] - 1 for i in drawn],
        slots=[plan.slots[i] for i in drawn],
        positions=[ends[i] for i in drawn],
        sequences=drawn,
    )


def wanted_draws(plan: StepPlan, slots: Slots, firsts: Sequence[int]) -> Draws:
    """Draws of any plan. `firsts`: each sequence's first row in the device's batch."""
    rows: list[int] = []
    numbers: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    planned: list[int] = []
    owners: list[Slot] = []
    draws, row = Draws(rows, numbers, positions, sequences, planned, owners), 0
    drafting = any(plan.drafts)
    for i, (number, length, start) in enumerate(
        zip(plan.slots, plan.lengths, plan.starts, strict=True)
    ):
        slot, first = slots[number], row
        row += length
        if not plan.sample[i] or slot.pooling != Pooling.NONE:
            continue
        drafted = plan.tokens[row - plan.drafts[i] : row].tolist() if drafting else []
        if slot.has_grammar or slot.constraint is not None:
            ahead = plan.tokens[first] == LAST_SAMPLED
            _constrain(draws, slot, drafted, ahead)
        draws.reads_output |= slot.rules.needs_history
        if slot.logprobs is not None:
            draws.logprobs = max(draws.logprobs, slot.logprobs)
        for j in range(len(drafted) + 1):
            inside = length - len(drafted) - 1 + j
            position = start + inside + 1
            if slot.rules.change(position):
                draws.rules.append(RuledRow(len(rows), slot.rules, position, drafted[:j]))
            rows.append(firsts[i] + inside)
            numbers.append(number)
            positions.append(position)
            sequences.append(i)
            owners.append(slot)
            planned.append(drafted[j] if j < len(drafted) else -1)
    if not drafting:
        draws.drafts = ()
    return draws


def _constrain(draws: Draws, slot: Slot, drafted: list[int], ahead: bool) -> None:
    """Record the masks that a sequence with a grammar needs. The caller adds the sequence's rows to
    `draws` next. `ahead`: the host does not have the sequence's first token yet.
    """
    draws.constrained |= slot.has_grammar
    if slot.constraint is None:
        return
    draws.reads_output = True
    if drafted:
        draws.expected.append((slot.constraint, drafted))
    for j in range(len(drafted) + 1):
        draws.masked.append(MaskedRow(len(draws.rows) + j, slot.constraint, j, ahead))


def wanted_scores(plan: StepPlan, slots: Slots, firsts: Sequence[int]) -> Scores:
    scores, at = Scores(), 0
    if not plan.targets:
        return scores
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
    slots: Tensor,
    positions: Tensor,
    device: DeviceSlots,
    masks: RowMasks,
) -> Tensor:
    """Sample tokens [rows] int32 from `logits` [rows, vocabulary], for the rows `part` of `draws`,
    with their `slots` and `positions` on the device. NOT_FINITE marks rows that are not `finite`
    [rows]; LATE_MASK and NO_TOKEN come from `masks`. If the rules exclude every token that a
    grammar mask allows, the rules are ignored.
    """
    rules = [each for each in draws.rules if each.row in part]
    allowed = allowed_tokens(masks, part, logits)
    if allowed is not None:
        logits = logits.masked_fill(~allowed, NEVER)
    if rules:
        logits = changed(logits, rules, part.start)
    tokens = sample(logits, device.sampling, slots, positions)
    if allowed is not None:
        tokens = within(allowed, tokens)
    tokens = replaced(tokens, masks.instead, part).masked_fill(~finite, NOT_FINITE)
    return replaced(tokens, masks.undrawn, part)


def note_last(tokens: Tensor, draws: Draws, device: DeviceSlots) -> None:
    """Store the last token of each slot on the device, that is, the token sampled after the
    accepted drafts.
    """
    if not draws.drafts:
        (slots,) = to_device([draws.slots], tokens.device)
        device.last[slots] = tokens
        return
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
        # A row that was not sampled (late mask) ends the run of accepted drafts.
        going = going & (tokens[last] == planned[last]) & (last < end)
        going = going & (tokens[after] != LATE_MASK)
        last = torch.where(going, after, last)
    device.last[slots] = tokens[last]


def score(logits: Tensor, tokens: Tensor, alternatives: int) -> Scored:
    """Log-probability and rank of `tokens` [rows], and the `alternatives` most likely tokens with
    their log-probabilities, from `logits` [rows, vocabulary].
    """
    norm = torch.logsumexp(logits, 1, keepdim=True)
    chosen = logits.gather(1, tokens.clamp(min=0).long().unsqueeze(1))
    ranks = (logits > chosen).sum(1) + 1
    best, ids = logits.topk(min(alternatives, logits.shape[1]), 1)
    return (chosen - norm).squeeze(1), ranks, ids, best - norm


def result_of(plan: StepPlan, draws: Draws, scores: Scores, found: DeviceResults) -> StepResult:
    """The plan's result, from data already on the host. A sequence's drafts are accepted up to the
    first that differs from the token sampled at its position.
    """
    result = StepResult()
    result.counts.frombytes(bytes(4 * len(plan.slots)))
    if found.tokens is not None:
        rows = None if found.drawn is None else _rows(found.drawn)
        tokens = array("i", found.tokens.tolist())
        if draws.drafts:
            _take_drafted(draws, tokens, rows, result)
        else:
            _take(draws, tokens, rows, result)
    if found.scored is not None:
        rows = _rows(found.scored)
        for i, row, wanted in zip(scores.sequences, rows, scores.alternatives, strict=True):
            result.prompt_logprobs.setdefault(i, []).append(_cut(row, wanted))
    return result


def _take(
    draws: Draws, tokens: array[int], logprobs: list[LogprobRow] | None, result: StepResult
) -> None:
    """Set the result's tokens for a plan without drafts: one for each sampled sequence."""
    result.tokens = tokens
    if len(tokens) == len(result.counts):
        result.counts = array("i", [1]) * len(tokens)
    else:
        for i in draws.sequences:
            result.counts[i] = 1
    for row, owner in enumerate(draws.owners):
        token = tokens[row]
        if owner.constraint is not None:
            owner.constraint.undrawn |= token == LATE_MASK
        if token < 0:
            continue
        if logprobs is not None and owner.logprobs is not None:
            result.logprobs[draws.sequences[row]] = [_cut(logprobs[row], owner.logprobs)]
        _accept(owner, [token])


def _accept(owner: Slot, tokens: list[int]) -> None:
    owner.rules.accept(tokens)
    if owner.constraint is not None:
        owner.constraint.accept(tokens)


def _take_drafted(
    draws: Draws, tokens: array[int], logprobs: list[LogprobRow] | None, result: StepResult
) -> None:
    closed: set[int] = set()
    taken: dict[int, tuple[Slot, list[int]]] = {}
    for row, (i, token) in enumerate(zip(draws.sequences, tokens, strict=True)):
        if i in closed:
            continue
        if token != draws.drafts[row]:
            closed.add(i)
        # A late mask after accepted drafts counts as a rejected draft.
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
        _accept(owner, drawn)


def _rows(scored: Scored) -> list[LogprobRow]:
    own, ranks, ids, best = (column.tolist() for column in scored)
    rows = []
    for logprob, rank, tokens, values in zip(own, ranks, ids, best, strict=True):
        pairs = sorted(zip(tokens, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
        rows.append((logprob, rank, pairs))
    return rows


def _cut(row: LogprobRow, alternatives: int) -> LogprobRow:
    return (row[0], row[1], row[2][:alternatives])
