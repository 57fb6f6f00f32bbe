"""Patterns of messages among Ray actors: by calls, and through a compiled graph."""

from __future__ import annotations

from typing import Any

from penstock.core import PenstockError
from penstock.executor.ray.cluster import Cluster

OBJECTS = 4
"""For each actor, number of messages of the largest size that fit in the object store of an own
cluster.
"""
PLACED = 60.0


class Echo:
    """An actor that returns each message unchanged."""

    def echo(self, message: bytes) -> bytes:
        return message


def join_cluster(address: str | None, most: int, capacity: int) -> Cluster:
    """The cluster at `address`, or a new one for `most` actors and messages of `capacity` bytes."""
    return Cluster(address, most + 1, OBJECTS * most * capacity)


class Actors:
    """`count` actors in sequence (`chain`) or in parallel, connected by calls or by a compiled
    graph. A context manager, which ends the actors.
    """

    def __init__(
        self, cluster: Cluster, kind: str, count: int, capacity: int, *, chain: bool
    ) -> None:
        self._cluster = cluster
        self._kind, self._count, self._capacity = kind, count, capacity
        self._chain = chain
        self._graph: Any = None

    def __enter__(self) -> Actors:
        cluster = self._cluster
        # Spread the actors over several nodes, if the cluster has them.
        self._group = cluster.reserve([{"CPU": 1.0}] * self._count, "SPREAD")
        try:
            if not cluster.reserved(self._group, PLACED):
                raise PenstockError(f"the Ray cluster has no {self._count} free CPUs")
            self._actors = [
                cluster.actor(Echo, self._group, at, None, {}) for at in range(self._count)
            ]
            if self._kind == "compiled-graph":
                # Ray's buffers hold pickled messages, which are slightly longer.
                room = self._capacity + (1 << 16)
                self._graph = cluster.graph(self._nodes, 1, room, overlap=False)
        except BaseException:
            cluster.release(self._group)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._graph is not None:
            self._graph.teardown()
        # Ray ends the actors of a placement group when the group is removed.
        self._cluster.release(self._group)

    def exchange(self, message: bytes) -> list[bytes]:
        """Send a message to the first actor of each chain; returns the results of the last
        actors.
        """
        ray = self._cluster.ray
        found: list[bytes]
        if self._graph is not None:
            found = ray.get(self._graph.execute(message))
        else:
            found = ray.get(self._calls(message))
        return found

    def _calls(self, given: Any) -> list[Any]:
        if not self._chain:
            return [actor.echo.remote(given) for actor in self._actors]
        for actor in self._actors:
            given = actor.echo.remote(given)
        return [given]

    def _nodes(self, given: Any) -> list[Any]:
        if not self._chain:
            return [actor.echo.bind(given) for actor in self._actors]
        for actor in self._actors:
            given = actor.echo.bind(given)
        return [given]
