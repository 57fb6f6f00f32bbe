"""Guesses of the next tokens, which a step verifies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    active: bool
    """Whether it may propose anything. Drafts follow known tokens, so nothing is planned ahead."""

    def propose(self, tokens: array[int], most: int) -> Sequence[int]:
        """At most `most` tokens that may follow `tokens`."""


class NoDrafts:
    active = False

    def propose(self, tokens: array[int], most: int) -> Sequence[int]:
        return ()
