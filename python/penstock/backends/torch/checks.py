"""Validation of a plan before execution: an invalid plan raises ValueError and never causes an
out-of-bounds read.

`crates/compute/decoder/src/step.rs` has the same rules.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

from penstock.core import Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED, NO_BLOCK


@dataclass(frozen=True, slots=True)
class GroupLimits:
    blocks: int
    window: int | None
    chunked: bool

    def first_seen(self, position: int) -> int:
        """Lowest position that the token at `position` attends to."""
        if self.window is None:
            return 0
        if self.chunked:
            return position // self.window * self.window
        return max(0, position + 1 - self.window)


@dataclass(frozen=True, slots=True)
class Limits:
    slots: int
    tokens: int
    vocab: int
    max_position: int
    block_size: int
    groups: tuple[GroupLimits, ...]
    last_sampled: bool
    """Whether this rank holds the sampled tokens, as a rank with the embedding and the output head
    does.
    """


def check(plan: StepPlan, limits: Limits) -> None:
    """Check all properties of a plan that do not depend on the contents of the slots; raises
    ValueError. Whole columns are checked first. Single sequences are checked only after a failure,
    to name the sequence at fault.
    """
    _columns(plan, limits)
    _range("slot", plan.slots, limits.slots)
    distinct("slot", plan.slots)
    ends = map(add, plan.starts, plan.lengths)
    if min(plan.starts) < 0 or max(ends) > limits.max_position or any(plan.drafts):
        for i in range(len(plan.slots)):
            _sequence(plan, i, limits)
    _tokens(plan, limits.vocab)
    if plan.targets and (min(plan.targets) < -1 or max(plan.targets) >= limits.vocab):
        _range("target token id", array("i", (t for t in plan.targets if t != -1)), limits.vocab)
    for registration in plan.registrations:
        _registration(registration, len(plan.grammars), limits)
    _added(plan, limits)


def distinct(what: str, values: Sequence[int]) -> None:
    if len(set(values)) < len(values):
        twice = next(value for at, value in enumerate(values) if value in values[:at])
        raise ValueError(f"{what} {twice} appears twice")


def drafts(plan: StepPlan, i: int) -> int:
    """Number of draft tokens at the end of sequence `i`."""
    return plan.drafts[i] if plan.drafts else 0


def _columns(plan: StepPlan, limits: Limits) -> None:
    n, tokens = len(plan.slots), len(plan.tokens)
    equal = len(plan.starts) == len(plan.lengths) == len(plan.sample) == n
    equal = equal and len(plan.drafts) in (0, n)
    if not equal or min(plan.lengths, default=1) < 1 or sum(plan.lengths) != tokens:
        raise ValueError(f"columns of {n} sequences and {tokens} tokens differ in length")
    entries = n * len(limits.groups)
    if len(plan.kept) != entries or len(plan.added_offsets) != entries + 1:
        raise ValueError(f"columns of {entries} block tables differ in length")
    if len(plan.targets) not in (0, tokens):
        raise ValueError("targets and tokens differ in length")
    if not 0 < tokens <= limits.tokens:
        raise ValueError(f"{tokens} tokens, not in 1..={limits.tokens}")


def _sequence(plan: StepPlan, i: int, limits: Limits) -> None:
    start, length, most = plan.starts[i], plan.lengths[i], limits.max_position
    if start < 0 or start + length > most:
        end = start + length
        raise ValueError(f"sequence {i}: positions {start}..{end} are outside 0..{most}")
    most = length - 1 if plan.sample[i] else 0
    if not 0 <= drafts(plan, i) <= most:
        raise ValueError(f"sequence {i}: {drafts(plan, i)} drafts, not in 0..={most}")


def _tokens(plan: StepPlan, vocab: int) -> None:
    """Check token ids. LAST_SAMPLED is allowed only as the first token of a sequence."""
    tokens = plan.tokens
    first_only = len(tokens) == len(plan.lengths)
    if min(tokens) >= (LAST_SAMPLED if first_only else 0) and max(tokens) < vocab:
        return
    row = 0
    for length in plan.lengths:
        _range("token id", tokens[row + (tokens[row] == LAST_SAMPLED) : row + length], vocab)
        row += length


def _registration(registration: Registration, grammars: int, limits: Limits) -> None:
    wanted, problem = registration.prompt_logprobs, ""
    if not 0 <= registration.slot < limits.slots:
        problem = f"is not under {limits.slots}"
    elif not -1 <= wanted <= limits.vocab:
        problem = f"wants {wanted} alternatives from a vocabulary of {limits.vocab}"
    elif registration.grammar > grammars:
        problem = f"names grammar {registration.grammar}; the plan has {grammars}"
    elif registration.adapter:
        problem = f"names adapter {registration.adapter}; this backend has none"
    if problem:
        raise ValueError(f"registered slot {registration.slot} {problem}")


def _added(plan: StepPlan, limits: Limits) -> None:
    offsets, count = plan.added_offsets, len(plan.added)
    ascending = offsets[0] == 0 and list(offsets) == sorted(offsets)
    if not ascending or offsets[-1] != count:
        raise ValueError(f"offsets of {count} added blocks do not ascend from 0 to {count}")
    least = min((group.blocks for group in limits.groups), default=0)
    if not count or (min(plan.added) >= NO_BLOCK and max(plan.added) < least):
        return
    for entry in range(len(offsets) - 1):
        group = limits.groups[entry % len(limits.groups)]
        blocks = plan.added[offsets[entry] : offsets[entry + 1]]
        _range("block", array("i", (b for b in blocks if b != NO_BLOCK)), group.blocks)


def _range(what: str, values: array[int], limit: int) -> None:
    if values and (min(values) < 0 or max(values) >= limit):
        wrong = next(value for value in values if not 0 <= value < limit)
        raise ValueError(f"{what} {wrong} is not in 0..{limit}")
