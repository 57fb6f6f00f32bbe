"""What one sequence gets from the tiers: asked for, chosen, loaded, perhaps while it computes."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.kv.tiers.pieces import Chunk, Piece, State


@dataclass(slots=True, eq=False)
class Fetch:
    """Pieces that are loaded or under way bound what may be computed: computing goes up to the first of them,
    and goes on behind it when it is there. A piece that has not begun is computed instead when the
    computation reaches it, unless the sequence is `patient`: then loading all is so fast that nothing is
    computed meanwhile.
    """

    digests: list[bytes]
    block_size: int
    overdue: float
    """When answers to probes are no longer waited for."""
    found: list[set[Chunk]] = field(default_factory=list)
    """Of each tier that goes by name."""
    probes: list[int] = field(default_factory=list)
    """Tiers that were asked and have not answered yet."""
    first_asked: int = 0
    """The first chunk that tiers were asked for."""
    deepened: bool = False
    """Whether shorter chunks were asked for after the full ones."""
    ram_first: int = 0
    ram_slots: list[int] = field(default_factory=list)
    """Where RAM has the blocks from `ram_first` on; held until they are loaded or not wanted."""
    looked: bool = False
    """Whether RAM was asked."""
    there: Sequence[Piece] = ()
    """Pieces that could have been chosen."""
    pieces: list[Piece] = field(default_factory=list)
    """In the order of their blocks; those that failed or were passed are gone."""
    patient: bool = True
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """The block table of the sequence."""
    tokens: Counter[int] = field(default_factory=Counter)
    """Loaded and passed, by tier."""

    def bound(self) -> int:
        """Tokens that may be computed at present."""
        for piece in self.pieces:
            if self.patient or piece.state is not State.WAITING:
                return piece.first * self.block_size
        return sys.maxsize

    def computing(self, end: int) -> None:
        """Tokens up to `end` are in a plan: what has not begun before there is not loaded any more."""
        size = self.block_size
        self.pieces = [p for p in self.pieces if p.first * size >= end or p.state is not State.WAITING]

    def advance(self, num_computed: int, known: int) -> int:
        """Computed tokens after passing what is loaded; of `known` ones the last is computed in any case."""
        size = self.block_size
        while self.pieces:
            piece = self.pieces[0]
            if piece.state is not State.LOADED or piece.first * size > num_computed:
                break
            del self.pieces[0]
            end = min(piece.end * size, known - 1)
            if end > num_computed:
                self.tokens[piece.tier] += end - num_computed
                num_computed = end
        return num_computed

    def next_waiting(self) -> Piece | None:
        """From the front where nothing is computed meanwhile, from the end otherwise."""
        pieces = self.pieces if self.patient else reversed(self.pieces)
        return next((piece for piece in pieces if piece.state is State.WAITING), None)
