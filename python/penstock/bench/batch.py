"""Batches of requests that are handed over at once, and what comes of them: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.bench.prompts import PromptMaker
from penstock.bench.request import Request


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of one batch. Tokens are those of requests that succeeded."""

    seconds: float
    """From handing it over to the last end."""
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    examples: Sequence[str] = ()
    """Different reasons of failures, some of them."""
    partial: bool = False
    """Whether Ctrl-C ended it."""


class Backend(Protocol):
    """Whoever answers."""

    name: str
    """An address, or `in process`."""
    model_id: str
    chat: bool

    def maker(self) -> PromptMaker: ...

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        """Answers of exactly the lengths that are asked for; a shorter one is a failure."""
