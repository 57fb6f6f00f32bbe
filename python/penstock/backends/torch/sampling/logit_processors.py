"""Logit processors (penalties, bias, bans), as in `crates/compute/decoder/src/sampler.rs`.

Each sequence keeps its rules as int32 or f32 columns. The columns of all rows are uploaded in one
copy and applied to all logits at once, so the number of operations is independent of the number of
rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.inputs import to_device
from penstock.backends.torch.sampling.grammars import NEVER

NOTHING = array("i")
ENTRIES = 1 << 20
"""Maximum number of logits that one pass changes. Bounds the memory of their indices on
the device.
"""


class Rules:
    """The logit processors of one sequence. `history` has `prompt_len` prompt tokens, then the
    output so far, if the rules need them; `accept` appends to it. Token ids of `vocab` and above
    have no logits and are ignored.
    """

    def __init__(
        self, params: Mapping[str, Any], history: Sequence[int], prompt_len: int, vocab: int
    ) -> None:
        self.repetition: float = params["repetition_penalty"]
        self._presence: float = params["presence_penalty"]
        self._frequency: float = params["frequency_penalty"]
        self._banned = [array("i", run) for run in params["banned"]]
        self._suppressed = _known(params["suppressed"], vocab)
        self._suppressed_until: int = params["suppressed_until"]
        self._vocab = vocab
        self.restricts = bool(params["allowed"])
        """True if only the tokens in `allowed` may be sampled."""
        self.allowed = _known(params["allowed"], vocab)
        bias = [(token, value) for token, value in params["bias"] if token < vocab]
        self.biased = array("i", [token for token, _ in bias])
        self.biases = array("f", [value for _, value in bias])
        self.penalises = self._presence != 0.0 or self._frequency != 0.0
        self.needs_history = (
            self.repetition != 1.0 or self.penalises or any(len(run) > 1 for run in self._banned)
        )
        self.any = bool(
            self.needs_history
            or self.restricts
            or params["bias"]
            or self._banned
            or (self._suppressed and self._suppressed_until)
        )
        """True if the rules may change logits at some position."""
        self.seen = array("i")
        """Distinct tokens of prompt and output; empty without a repetition penalty."""
        self.drawn, self.penalties = array("i"), array("f")
        """Distinct tokens of the output, and for each the presence and frequency penalty that is
        subtracted from its logit.
        """
        self._seen: set[int] = set()
        self._counts: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._output: list[int] = []
        if self.repetition != 1.0:
            self._see(history[:prompt_len])
        self.accept(history[prompt_len:])

    def accept(self, tokens: Sequence[int]) -> None:
        """Append tokens to the output."""
        if not self.needs_history:
            return
        self._output.extend(tokens)
        if self.repetition != 1.0:
            self._see(tokens)
        if self.penalises:
            self._count(tokens)

    def _see(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if token not in self._seen and 0 <= token < self._vocab:
                self._seen.add(token)
                self.seen.append(token)

    def _count(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if not 0 <= token < self._vocab:
                continue
            count = self._counts[token] = self._counts.get(token, 0) + 1
            penalty = self._frequency * count + self._presence
            if count > 1:
                self.penalties[self._places[token]] = penalty
            else:
                self._places[token] = len(self.drawn)
                self.drawn.append(token)
                self.penalties.append(penalty)

    @property
    def entries(self) -> int:
        """Upper bound of the number of logits that change."""
        columns = (self.seen, self.drawn, self.biased, self.allowed, self._suppressed, self._banned)
        return sum(map(len, columns))

    def after(self, drafts: Sequence[int]) -> Rules:
        """A copy of these rules with `drafts` appended to the output; `self` if the drafts make no
        difference.
        """
        if not drafts or not self.needs_history:
            return self
        own = Rules.__new__(Rules)
        own.__dict__ = {name: copy(value) for name, value in self.__dict__.items()}
        own.accept(drafts)
        return own

    def change(self, position: int) -> bool:
        """True if any rule changes the logits at `position`."""
        return self.any and (
            self.needs_history
            or self.restricts
            or bool(self.biased or self._banned)
            or position < self._suppressed_until
        )

    def never(self, position: int) -> array[int]:
        """Tokens banned at `position`."""
        if not self._banned and position >= self._suppressed_until:
            return NOTHING
        found = array("i")
        for run in self._banned:
            start, last = run[:-1].tolist(), run[-1]
            if last < self._vocab and (not start or self._output[-len(start) :] == start):
                found.append(last)
        if position < self._suppressed_until:
            found.extend(self._suppressed)
        return found


def _known(tokens: Sequence[int], vocab: int) -> array[int]:
    if not tokens:
        return NOTHING
    return array("i", [token for token in tokens if token < vocab])


@dataclass(slots=True)
class RuledRow:
    """A row of a step whose logits its sequence's rules change."""

    row: int
    """Index among the sampled rows."""
    rules: Rules
    position: int
    drafts: Sequence[int]
    """Draft tokens that precede this row and follow the sequence's output."""


def _entries(tokens: list[array[int]], values: Sequence[array[float]] = ()) -> list[array[int]]:
    """Columns that name entries in the logits of several rows: the number of tokens per row, all
    tokens, and, if given, the bits of one number per token.
    """
    return [array("i", map(len, tokens)), _joined(tokens), _joined(values)]


def _joined(columns: Sequence[array[int] | array[float]]) -> array[int]:
    return array("i", b"".join(columns))


def changed(logits: Tensor, ruled: Sequence[RuledRow], first: int) -> Tensor:
    """A copy of the logits [rows, vocabulary] with the rules applied. `first`: index of its first
    row among the step's sampled rows. Rules that ban all tokens of a row are ignored, because a
    token must be sampled.
    """
    found = logits.clone()
    for some in _at_once(ruled):
        _change(logits, found, some, first)
    return found


def _at_once(ruled: Sequence[RuledRow]) -> list[list[RuledRow]]:
    """Split the rows into parts of at most ENTRIES entries, or of one row."""
    parts: list[list[RuledRow]] = [[]]
    total = 0
    for one in ruled:
        count = one.rules.entries
        if parts[-1] and total + count > ENTRIES:
            parts.append([])
            total = 0
        parts[-1].append(one)
        total += count
    return parts


def _change(logits: Tensor, found: Tensor, ruled: Sequence[RuledRow], first: int) -> None:
    """Apply the rules of `ruled` to their rows in `found`, which is a copy of `logits`."""
    each = [one.rules.after(one.drafts) for one in ruled]
    columns: list[Sequence[int]] = [
        array("i", [one.row - first for one in ruled]),
        array("i", [at for at, rules in enumerate(each) if rules.restricts]),
        _joined([array("f", [rules.repetition for rules in each])]),
        *_entries([own.never(one.position) for own, one in zip(each, ruled, strict=True)]),
        *_entries([rules.allowed for rules in each]),
        *_entries([rules.biased for rules in each], [rules.biases for rules in each]),
        *_entries([rules.seen for rules in each]),
        *_entries([rules.drawn for rules in each], [rules.penalties for rules in each]),
    ]
    uploaded = to_device(columns, logits.device)
    rows, restricted, repetition = uploaded[:3]
    places = [_places(*uploaded[at : at + 2]) for at in range(3, len(uploaded), 3)]
    numbers = [column.view(torch.float32) for column in (repetition, *uploaded[5::3])]
    whole = len(ruled) == len(logits)
    own = found if whole else found[rows]
    _mask(own, places[0], places[1], restricted)
    if at := places[2]:
        own.index_put_(at, numbers[3], accumulate=True)
    if at := places[3]:
        chosen, factor = own[at], numbers[0][at[0]]
        own[at] = torch.where(chosen > 0.0, chosen / factor, chosen * factor)
    if at := places[4]:
        own[at] -= numbers[5]
    void = (own == NEVER).all(1, keepdim=True)
    torch.where(void, logits if whole else logits[rows], own, out=own)
    if not whole:
        found.index_copy_(0, rows.long(), own)


def _places(counts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
    """Row and token index of each entry, from the number of entries per row; None without
    entries.
    """
    if not len(tokens):
        return None
    index = torch.arange(len(counts), dtype=torch.int32, device=counts.device)
    return torch.repeat_interleave(index, counts, output_size=len(tokens)), tokens


Places = tuple[Tensor, Tensor] | None


def _mask(logits: Tensor, never: Places, allowed: Places, restricted: Tensor) -> None:
    """Set logits to minus infinity: in the rows `restricted`, of all tokens but `allowed`; in any
    row, of the tokens `never`.
    """
    if len(restricted):
        kept = None if allowed is None else logits[allowed]
        logits.index_fill_(0, restricted.long(), NEVER)
        if allowed is not None:
            logits[allowed] = kept
    if never is not None:
        # Use a device scalar: a host scalar would be copied, and older versions of torch
        # synchronise on such a copy.
        logits.index_put_(never, logits.new_full((), NEVER))
