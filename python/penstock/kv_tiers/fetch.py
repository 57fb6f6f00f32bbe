"""What one sequence gets from the tiers: asked for, chosen, loaded, perhaps while it computes."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from penstock.kv_tiers.choose import Choice
from penstock.kv_tiers.pieces import Chunk, Piece, State


@dataclass(slots=True, eq=False)
class Fetch:
    """Pieces that are awaited, loaded or under way bound what may be computed: computing goes up to
    the first of them, and goes on behind it when it is there. Others that have not begun are
    computed instead when the computation reaches them.
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
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """The block table of the sequence."""
    planned: int = 0
    """Tokens that were had from the pool, or computed, or are in a plan."""
    tokens: Counter[int] = field(default_factory=Counter)
    """Loaded and passed, by tier."""

    def bound(self) -> int:
        """Tokens that may be computed at present."""
        for piece in self.pieces:
            if piece.awaited or piece.state is not State.WAITING:
                return piece.first * self.block_size
        return sys.maxsize

    def computing(self, end: int) -> None:
        """Tokens up to `end` are in a plan: what has not begun before there is not loaded any more."""
        size = self.block_size
        self.planned = end
        self.pieces = [
            p for p in self.pieces if p.first * size >= end or p.state is not State.WAITING
        ]

    def advance(self, num_computed: int, known: int) -> int:
        """Computed tokens after passing what is loaded; of `known` ones the last is computed in any
        case.
        """
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

    def choose(self, choice: Choice) -> None:
        """Load these, besides what is under way."""
        for piece in choice.awaited:
            piece.awaited = True
        for piece in choice.meanwhile:
            piece.awaited = False
        begun = [piece for piece in self.pieces if piece.state is not State.WAITING]
        self.pieces = sorted(
            [*begun, *choice.awaited, *choice.meanwhile], key=lambda piece: piece.first
        )

    def give_up(self, tier: int) -> None:
        """What waits for its turn in this tier is computed, unless it is chosen again."""
        for piece in [p for p in self.pieces if p.tier == tier and p.state is State.WAITING]:
            piece.awaited = False
            self.pieces.remove(piece)

    def left(self) -> list[Piece]:
        """What could still be loaded, whether it was chosen or not; RAM holds only what was."""
        size, waiting = self.block_size, State.WAITING
        after = [p for p in self.there if p.state is waiting and p.first * size >= self.planned]
        return [p for p in after if p.key or p in self.pieces]

    @property
    def open(self) -> bool:
        """Whether anything may still come from the tiers."""
        return bool(self.there) and self.planned <= self.there[-1].first * self.block_size

    def next_waiting(self, tiers: Collection[int]) -> Piece | None:
        """Of these tiers: what is awaited from the front on, then the others from the end."""
        waiting = [p for p in self.pieces if p.state is State.WAITING and p.tier in tiers]
        return next((p for p in waiting if p.awaited), waiting[-1] if waiting else None)
