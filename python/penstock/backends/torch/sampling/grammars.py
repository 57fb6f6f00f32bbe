"""Structured output: masks of the tokens that a grammar allows, for the rows of a step, and their
application to logits.

Native threads (`crates/base/structured-output`) compute a mask after each sampled token, while the
forward pass of the next step runs. A row whose mask is not ready in time is not sampled in this
step, so that other rows do not wait for a grammar.
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
"""Seconds that a step waits for late masks, counted from the time when its logits are computed."""
NEVER = -torch.inf


class Grammars:
    """Grammars of a sampling rank. The first grammar starts the threads and loads the tokenizer."""

    def __init__(self, checkpoint: Path, threads: int) -> None:
        self._checkpoint = checkpoint
        self._threads = threads
        self._native: GrammarMasks | None = None

    def start(self, grammar: bytes, registration: Registration, ends: Sequence[int]) -> Constraint:
        """Start a sequence's grammar, after the output in `registration`. `ends`: end tokens of the
        sequence. Raises ValueError if the grammar is invalid.
        """
        from penstock._native import GrammarMasks

        if self._native is None:
            self._native = GrammarMasks(str(self._checkpoint), self._threads)
        output = registration.history[registration.prompt_len :]
        return Constraint(self._native.start(grammar, list(ends), output.tolist()))

    def take_cost(self) -> tuple[int, float, float]:
        """Number of masks computed since the last call, the seconds spent on computing them, and
        those spent on waiting for them.
        """
        return (0, 0.0, 0.0) if self._native is None else self._native.take_cost()


@dataclass(slots=True)
class Constraint:
    """The grammar of one sequence."""

    masks: SequenceMasks
    undrawn: bool = False
    """True if no token was sampled for the sequence's last row. A row that was planned after it
    then has no input token.
    """

    def accept(self, tokens: list[int]) -> None:
        """Advance the grammar by sampled tokens, and start the computation of the next mask."""
        if tokens:
            self.masks.accept(tokens)


@dataclass(slots=True)
class MaskedRow:
    """A row that is sampled under a grammar."""

    row: int
    """Index among the sampled rows."""
    constraint: Constraint
    drafts: int
    """Number of draft tokens between the end of the output and this row."""
    ahead: bool
    """Whether the plan has LAST_SAMPLED for the sequence, that is, was made before the last token
    was known.
    """


@dataclass(slots=True)
class RowMasks:
    """Masks of a step's rows."""

    bits: dict[int, bytes] = field(default_factory=dict)
    """By row: bitmask of the allowed tokens."""
    instead: dict[int, int] = field(default_factory=dict)
    """By row: LATE_MASK or NO_TOKEN, which replaces the sampled token in the result."""
    undrawn: dict[int, int] = field(default_factory=dict)
    """By row: LATE_MASK. It takes precedence over logits that are not finite."""


def find_masks(rows: Sequence[MaskedRow], computed: Callable[[], bool]) -> RowMasks:
    """Wait for the masks of `rows`, at most until MASK_WAIT_S after `computed` returns True, that
    is, after the logits are done.
    """
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
    """[rows, vocabulary] bool: tokens allowed in each row of `part`; None if all are."""
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
    """`tokens`, with forbidden tokens (from NaN logits) replaced by the lowest allowed one."""
    kept = allowed.gather(1, tokens.long().unsqueeze(1)).squeeze(1)
    return torch.where(kept, tokens, allowed.byte().argmax(1).to(tokens.dtype))


def replaced(tokens: Tensor, by: dict[int, int], part: range) -> Tensor:
    """`tokens` of the rows `part`, with the entries of `by` (keyed by row) written over them."""
    rows = [row for row in by if row in part]
    if not rows:
        return tokens
    columns = [row - part.start for row in rows], [by[row] for row in rows]
    at, values = to_device(columns, tokens.device)
    return tokens.index_copy(0, at.long(), values)
