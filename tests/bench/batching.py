"""A backend that answers as a function says, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock_lab.bench.batches import Batch
from penstock_lab.bench.prompts import PromptMaker
from penstock_lab.bench.request import Request


def whole(requests: Sequence[Request], seconds: float) -> Batch:
    """Every request answered."""
    inputs, outputs = zip(
        *((request.input_tokens, request.output_tokens) for request in requests), strict=True
    )
    return Batch(seconds, len(requests), 0, sum(inputs), sum(outputs))


@dataclass
class FakeBackend:
    """`answer` gets the number of the batch and its requests."""

    answer: Callable[[int, Sequence[Request]], Batch]
    name: str = "fake"
    model_id: str = "model"
    chat: bool = False
    batches: list[list[Request]] = field(default_factory=list)

    def maker(self) -> PromptMaker:
        return PromptMaker("ids", range(100, 1100))

    def run(self, requests: Sequence[Request], what: str) -> Batch:
        self.batches.append(list(requests))
        return self.answer(len(self.batches) - 1, requests)
