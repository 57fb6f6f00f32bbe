"""Grammars of sequences: the masks of a step's rows, and logits within them.

The native threads (`crates/base/structured-output`) compute a mask after each drawn token, while
the forward pass of the next step runs. A row whose mask is late is not drawn: no other row waits
for a grammar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.backends.torch.inputs import to_device, upload
from penstock.core import Registration
from penstock.core.plan import LATE_MASK

if TYPE_CHECKING:
    from penstock._native import GrammarMasks, SequenceMasks

MASK_WAIT_S = 0.005
"""Longest wait of a step for masks once its logits are there. An ordinary mask is there."""
NEVER = -torch.inf


class Grammars:
    """The grammars of a rank that draws. Threads and tokenizer are there from the first one on."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        self._checkpoint = checkpoint
        self._threads = threads
        self._native: GrammarMasks | None = None

    def start(self, grammar: bytes, registration: Registration, ends: Sequence[int]) -> Constraint:
        """That of a sequence that the tokens `ends` may end. ValueError: it is no grammar."""
        from penstock._native import GrammarMasks

        if self._native is None:
            self._native = GrammarMasks(str(self._checkpoint), self._threads)
        output = registration.history[registration.prompt_len :]
        return Constraint(self._native.start(grammar, list(ends), output.tolist()))

    def take_cost(self) -> tuple[int, float, float]:
        """Masks since the last call, seconds to compute them, and seconds of waiting."""
        return (0, 0.0, 0.0) if self._native is None else self._native.take_cost()


@dataclass(slots=True)
class Constraint:
    """The grammar of one sequence."""

    masks: SequenceMasks
    undrawn: bool = False
    """Whether the last row was not drawn: one made ahead behind it has no token before it."""

    def accept(self, tokens: list[int]) -> None:
        """Take in tokens that were drawn: their mask is computed from now on."""
        if tokens:
            self.masks.accept(tokens)


@dataclass(slots=True)
class MaskedRow:
    """A row that is drawn within a grammar."""

    row: int
    """Index among the rows that are drawn."""
    constraint: Constraint
    drafts: int
    """Drafts of the plan between output and row."""
    ahead: bool
    """Whether the plan has LAST_SAMPLED for the sequence."""


@dataclass(slots=True)
class RowMasks:
    """What a step found of the masks of its rows."""

    bits: dict[int, bytes] = field(default_factory=dict)
    """By row: a bit for each token that may follow."""
    instead: dict[int, int] = field(default_factory=dict)
    """By row: LATE_MASK or NO_TOKEN."""
    undrawn: dict[int, int] = field(default_factory=dict)
    """By row: LATE_MASK, whatever the logits are."""


def find_masks(rows: Sequence[MaskedRow], computed: Callable[[], bool]) -> RowMasks:
    """Wait for the masks, for a short time once `computed` says that the logits are there."""
    found = RowMasks()
    until: float | None = None
    for each in rows:
        each.constraint.undrawn &= each.ahead
        if each.constraint.undrawn:
            found.undrawn[each.row] = LATE_MASK
            continue
        while True:
            if until is None and computed():
                until = time.monotonic() + MASK_WAIT_S
            left = MASK_WAIT_S if until is None else until - time.monotonic()
            answer = each.constraint.masks.mask(each.drafts, left)
            if answer != LATE_MASK or until is not None:
                break
        if isinstance(answer, bytes):
            found.bits[each.row] = answer
        elif answer is not None:
            found.instead[each.row] = answer
    return found


def allowed_tokens(masks: RowMasks, part: range, logits: Tensor) -> Tensor | None:
    """[rows, vocabulary] bool: what may follow each row of `part`; None where all may."""
    if not any(row in part for row in masks.bits):
        return None
    vocab = logits.shape[1]
    size = -(-vocab // 8)
    every = b"\xff" * size
    rows = (masks.bits.get(row, every)[:size].ljust(size, b"\0") for row in part)
    packed = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
    packed = upload(packed, logits.device).view(len(part), size, 1)
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    return ((packed >> shifts) & 1).view(len(part), -1)[:, :vocab].bool()


def within(allowed: Tensor, tokens: Tensor) -> Tensor:
    """`tokens`, or the lowest allowed one where logits that are no numbers gave another."""
    kept = allowed.gather(1, tokens.long().unsqueeze(1)).squeeze(1)
    return torch.where(kept, tokens, allowed.byte().argmax(1).to(tokens.dtype))


def replaced(tokens: Tensor, by: dict[int, int], part: range) -> Tensor:
    """`tokens` of `part` with those that `by` has."""
    rows = [row for row in by if row in part]
    if not rows:
        return tokens
    columns = [row - part.start for row in rows], [by[row] for row in rows]
    at, values = to_device(columns, tokens.device)
    return tokens.index_copy(0, at.long(), values)
