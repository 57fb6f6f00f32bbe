"""Ranks as Ray actors: placed, joined, loaded, and shown to work by a step before the engine is
ready.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config import EngineConfig
from penstock.core import InvalidValueError, PenstockError, Ranks, RankTask
from penstock.executor.ranks import LEAST_ANSWER, Fence, RanksExecutor
from penstock.executor.ray.actors import Actors
from penstock.executor.ray.calls import Calls, Graph
from penstock.executor.ray.cluster import Cluster
from penstock.executor.ray.placement import Placement, place
from penstock.executor.rings import Rings, answer_bytes
from penstock.executor.wiring import Part, keyed, parts, wire
from penstock.ranks import Line, SharedFiles, forget_graph_semaphores, join_address

if TYPE_CHECKING:
    from penstock._native import StreamListener

PLACEMENT = 60.0
"""Seconds that the cluster gets to find room."""
CALLED = 60.0
"""Seconds in which ranks on other nodes call the engine."""
SILENCE = 1.25
"""Seconds without a sign of life after which a rank on another node counts as lost."""
NUMBER = 16
"""Bytes of a rank's number at most, which it says first."""
ENVELOPE = 4096
"""Bytes that Ray may put around a message."""

log = logging.getLogger("penstock.executor")


class RayExecutor(RanksExecutor):
    """`worker` names the module whose `Actor` is a rank. Returns when all ranks have computed a
    step.

    Raises PenstockError: no Ray, no cluster, no room, or the reason of the first rank that cannot
    load.
    """

    def __init__(
        self,
        worker: str,
        ranks: Ranks,
        config: EngineConfig,
        directory: Path,
        placement_timeout: float = PLACEMENT,
    ) -> None:
        super().__init__(ranks)
        channel = config.parallel.ray_channel
        if config.tiers.tiers and channel != "ring":
            # Calls of actors would wait for steps, and a graph carries nothing but its plans.
            raise InvalidValueError("--ray-channel", channel, "ring, which --kv-tier needs")
        self._config = config
        self._directory = directory
        self._key = secrets.token_bytes(32)
        self._lines: dict[int, Line] = {}
        self._files: SharedFiles | None = None
        self._graph: Graph | None = None
        self._placement: Placement | None = None
        self._actors: Actors | None = None
        messages = (
            max(ranks.plan_bytes, ranks.rows_bytes, ranks.result_bytes, LEAST_ANSWER) + ENVELOPE
        )
        self._message_bytes = messages
        # Each rank writes to buffers of its own, the engine to one set: room for twice that.
        store = 2 * (ranks.size + 1) * (self.depth + 1) * messages
        self._cluster = Cluster(config.parallel.ray_address, ranks.size, store)
        try:
            self._start(import_module(worker).Actor, placement_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks on their nodes, in their order."""
        return self._actors.pids if self._actors else []

    def close(self) -> None:
        self._close_tiers()
        if self._graph is not None:
            self._graph.close()
        if self._actors is not None:
            self._actors.end()
        for line in self._lines.values():
            line.close("the engine ended")
        if self._placement is not None:
            self._cluster.release(self._placement.group)
            self._placement = None
        self._close_files()
        self._cluster.close()

    def _start(self, kind: type, placement_timeout: float) -> None:
        parallel = self._config.parallel
        placement = self._placement = place(
            self._cluster, self._ranks, parallel.placement, placement_timeout
        )
        actors = self._members = self._actors = Actors(self._cluster, kind, placement, self.on_exit)
        actors.greet()
        self._open_lines(actors, placement)
        tasks = self._tasks(actors, placement)
        if parallel.ray_channel == "ring":
            self._serve(actors, tasks)
        else:
            self._load(actors, tasks)
        self.facts = tuple(
            replace(facts, host=seat.node.address)
            for facts, seat in zip(self._await_ready(), placement.seats, strict=True)
        )
        self._close_files()
        actors.everywhere("close_files")
        began = time.time_ns()
        if parallel.ray_channel == "compiled-graph":
            self._compile(actors)
        self._compute_first_step()
        if self._graph is not None:
            actors.everywhere("forget_graph_semaphores")
            forget_graph_semaphores(began)

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()

    # What joins the ranks
    # ---------------------------------------------------------------------------

    def _open_lines(self, actors: Actors, placement: Placement) -> None:
        """A line to each rank on another node, whatever brings its plans: it shows that the node
        lives.
        """
        from penstock._native import StreamListener

        away = [
            rank for rank, seat in enumerate(placement.seats) if seat.node.id != self._cluster.here
        ]
        if not away:
            return
        address = next(
            node.address for node in self._cluster.nodes() if node.id == self._cluster.here
        )
        listener = StreamListener(join_address(address, 0), self._key)
        limit = self._message_bytes
        calls = {
            rank: actors.handles[rank].call.remote(listener.address, self._key, rank, limit)
            for rank in away
        }
        for _ in away:
            self._accept(listener, actors)
        actors.get(calls)

    def _accept(self, listener: StreamListener, actors: Actors) -> None:
        try:
            stream = listener.accept(CALLED)
            name = stream.receive(CALLED, NUMBER)
        except ConnectionError as error:
            reason = f"a rank on another node cannot reach {listener.address}: {error}"
            raise PenstockError(
                f"{reason}. Ranks and engine need TCP to each other, on any port"
            ) from error
        rank = int(name or b"")
        self._lines[rank] = Line(
            stream, self._message_bytes, SILENCE, partial(actors.cut_off, rank)
        )

    def _tasks(self, actors: Actors, placement: Placement) -> list[RankTask]:
        ranks, carried = self._ranks, self._config.parallel.ray_channel == "compiled-graph"
        wanted = parts(ranks, [seat.node for seat in placement.seats], carried)
        makers = sorted({part.maker for part in wanted})
        of_maker = {maker: [part for part in wanted if part.maker == maker] for maker in makers}
        calls = {
            maker: actors.handles[maker].make.remote([part.wanted for part in each])
            for maker, each in of_maker.items()
        }
        made = dict(zip(makers, map(iter, actors.get(calls)), strict=True))
        things = [next(made[part.maker]) for part in wanted]
        self._fences = self._local_fences(placement, wanted, things)
        wirings = [keyed(wiring, self._key) for wiring in wire(ranks, wanted, things, carried)]
        return ranks.tasks(self._config.to_json(), wirings)

    def _local_fences(
        self, placement: Placement, wanted: Sequence[Part], things: Sequence[dict[str, Any]]
    ) -> list[Fence]:
        """Of the shared memory of this node. That of others ends with its actors."""
        from penstock._native import Fence

        here = self._cluster.here
        found = zip(wanted, things, strict=True)
        return [
            Fence(t["path"])
            for p, t in found
            if "path" in t and placement.seats[p.maker].node.id == here
        ]

    # Channels
    # ---------------------------------------------------------------------------------------

    def _serve(self, actors: Actors, tasks: Sequence[RankTask]) -> None:
        files = self._files = SharedFiles(self._directory, str(os.getpid()))
        rings = Rings(self._ranks, self._lines, files)
        files.seal()
        self._plans, self._answers = rings.plans, rings.answers
        self._fences = [*self._fences, *rings.fences, *files.fences()]
        for handle, task, job in zip(actors.handles, tasks, rings.jobs, strict=True):
            handle.serve.remote({"task": asdict(task), **job})

    def _load(self, actors: Actors, tasks: Sequence[RankTask]) -> None:
        calls = Calls(self._cluster, actors, self.depth)
        self._plans, self._answers = calls, calls.answers
        self._fences = [*self._fences, *calls.answers]
        last = self._ranks.size - self._ranks.tp
        calls.load(
            [
                {
                    "task": asdict(task),
                    "capacity": answer_bytes(self._ranks, task.rank),
                    "last": task.rank >= last,
                }
                for task in tasks
            ]
        )

    def _compile(self, actors: Actors) -> None:
        log.warning(
            "Ray's compiled graphs keep a CPU of each rank busy, even when there is nothing to compute"
        )
        overlap = self._config.parallel.ray_overlap_comm
        if overlap:
            log.warning(
                "--ray-overlap-comm: Ray overlaps the communication of GPU tensors only, and there are none"
            )
        graph = Graph(
            self._cluster, actors, self._ranks.tp, self.depth, self._message_bytes, overlap
        )
        self._graph = self._plans = graph
        self._answers = graph.answers
        self._fences = [*self._fences, graph]
