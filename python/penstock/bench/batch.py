"""Batches of requests that are sent at once, and their outcomes: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.bench.prompts import PromptMaker
from penstock.bench.request import Request


@dataclass(frozen=True, slots=True)
class Batch:
    """Outcome of a batch. Token counts are those of successful requests."""

    seconds: float
    """From the first request sent to the last end."""
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    examples: Sequence[str] = ()
    """A few different failure messages."""
    partial: bool = False
    """Whether Ctrl-C ended it."""


class Backend(Protocol):
    """What computes batches: a server or an engine in this process."""

    name: str
    """An address, or `in process`."""
    model_id: str
    chat: bool

    def maker(self) -> PromptMaker: ...

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        """Compute a batch with outputs of exactly the requested lengths; a shorter one is a
        failure.
        """
