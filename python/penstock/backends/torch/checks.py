"""Checks of a plan before anything is computed: a wrong plan is a ValueError, never a wrong read.

The rules are those of `crates/decoder/src/step.rs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from penstock.core import Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED, NO_BLOCK


@dataclass(frozen=True, slots=True)
class GroupLimits:
    blocks: int
    window: int | None
    chunked: bool

    def first_seen(self, position: int) -> int:
        """The first position that a token at `position` sees."""
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
    """Whether this rank learns which tokens are sampled."""


def check(plan: StepPlan, limits: Limits) -> None:
    """All that does not depend on what the slots hold."""
    _columns(plan, limits)
    row = 0
    for i, length in enumerate(plan.lengths):
        _sequence(plan, i, limits)
        known = plan.tokens[row + (plan.tokens[row] == LAST_SAMPLED) : row + length]
        _range("token id", known, limits.vocab)
        row += length
    _range("target token id", (t for t in plan.targets if t != -1), limits.vocab)
    for registration in plan.registrations:
        _registration(registration, len(plan.grammars), limits)
    _added(plan, limits)
    _range("slot", plan.slots, limits.slots)
    distinct("slot", plan.slots)


def distinct(what: str, values: Iterable[int]) -> None:
    seen: set[int] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value} appears twice")
        seen.add(value)


def drafts(plan: StepPlan, i: int) -> int:
    """The drafts at the end of sequence `i`."""
    return plan.drafts[i] if plan.drafts else 0


def _columns(plan: StepPlan, limits: Limits) -> None:
    n, tokens = len(plan.slots), len(plan.tokens)
    equal = len(plan.starts) == len(plan.lengths) == len(plan.sample) == n
    equal = equal and len(plan.drafts) in (0, n)
    if not equal or any(length < 1 for length in plan.lengths) or sum(plan.lengths) != tokens:
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
    ascending = all(a <= b for a, b in pairwise(offsets))
    if not ascending or offsets[0] != 0 or offsets[-1] != count:
        raise ValueError(f"offsets of {count} added blocks do not ascend from 0 to {count}")
    for entry in range(len(offsets) - 1):
        group = limits.groups[entry % len(limits.groups)]
        blocks = plan.added[offsets[entry] : offsets[entry + 1]]
        _range("block", (block for block in blocks if block != NO_BLOCK), group.blocks)


def _range(what: str, values: Iterable[int], limit: int) -> None:
    for value in values:
        if not 0 <= value < limit:
            raise ValueError(f"{what} {value} is not in 0..{limit}")
