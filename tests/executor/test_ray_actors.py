"""Which end of a rank is reported: the cause, not what follows from it."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.executor.processes import RankExit
from penstock.executor.ranks.messages import Failed, encode_answer
from penstock.executor.ray import actors as actors_module
from penstock.executor.ray.actors import Actors
from penstock.executor.ray.cluster import Node
from penstock.executor.ray.placement import Placement, RankPlacement
from tests.limits import HANG

KILLED = "The actor died: its process was killed"
LOST = ConnectionError("closed by peer")


class RayError(Exception):
    pass


class FakeRay:
    """Ray's `wait` and `get` of actors that end in an order: (rank, its last word or error)."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, ends: Sequence[tuple[int, bytes | RayError]]) -> None:
        self._ends = list(ends)
        self._found: dict[int, bytes | RayError] = {}

    def actor(self, *_: object) -> Any:
        stay = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._numbered))
        return SimpleNamespace(stay=stay)

    def _numbered(self) -> int:
        self._found[len(self._found)] = b""
        return len(self._found) - 1

    def wait(
        self, refs: Sequence[int], num_returns: int, timeout: float | None
    ) -> tuple[list[int], list[int]]:
        assert num_returns == 1
        if not self._ends:
            time.sleep(0.0 if timeout is None else timeout)
            return [], list(refs)
        rank, end = self._ends.pop(0)
        self._found[rank] = end
        return [rank], [ref for ref in refs if ref != rank]

    def get(self, ref: int) -> bytes:
        end = self._found[ref]
        if isinstance(end, RayError):
            raise end
        return end


def word(rank: int, error: Exception) -> bytes:
    return encode_answer(Failed.of(rank, 0, error))


@pytest.mark.parametrize(
    ("ends", "rank", "said"),
    [
        ([(1, RayError(KILLED)), (0, word(0, LOST))], 1, KILLED),
        ([(0, word(0, LOST)), (1, RayError(KILLED))], 1, KILLED),
        ([(2, word(2, LOST)), (0, word(0, LOST)), (1, RayError(KILLED))], 1, KILLED),
        ([(0, word(0, LOST)), (1, word(1, RuntimeError("no memory")))], 1, "no memory"),
        # A connection that broke between ranks that are there.
        ([(2, word(2, LOST)), (0, word(0, LOST))], 2, "closed by peer"),
    ],
)
def test_a_lost_connection_waits_for_the_rank_behind_it(
    ends: list[tuple[int, bytes | RayError]],
    rank: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing better comes where the connection broke by itself.
    settle = 0.01 if said == "closed by peer" else HANG
    monkeypatch.setattr(actors_module, "SETTLE", settle)
    ray = FakeRay(ends)
    node = Node("n", "10.0.0.1", 1.0)
    placement = Placement(None, tuple(RankPlacement(0, node) for _ in range(3)))
    found: queue.Queue[RankExit] = queue.Queue()
    cluster: Any = SimpleNamespace(ray=ray, actor=ray.actor)
    Actors(cluster, object, placement, found.put)
    end = found.get(timeout=HANG)
    assert end.rank == rank
    assert end.reason.startswith(f"rank {rank} (on 10.0.0.1) was lost: ")
    assert said in end.reason
    assert found.empty()
