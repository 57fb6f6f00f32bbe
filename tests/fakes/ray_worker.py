"""A rank without a model as a Ray actor: the real actor around `FakeRank`, with something to carry."""

from __future__ import annotations

from penstock.core import RankTask
from penstock.worker import actor

from tests.fakes.worker import FakeRank

CARRIED = b"left by a stage"


class CarryingRank(FakeRank):
    def put(self, carried: bytes) -> None:
        assert carried == CARRIED

    def fetch(self, _timeout: float) -> bytes:
        return CARRIED


class Actor(actor.Actor):
    def load_rank(self, task: RankTask) -> CarryingRank:
        return CarryingRank(task)
