"""The executor for ranks as Ray actors: placement, connection, start."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.backends import of_torch
from penstock.config import EngineConfig
from penstock.config.devices import DEVICES
from penstock.core import InvalidValueError, PenstockError
from penstock.core.progress import Report, silent
from penstock.executor.rank_group import RanksExecutor
from penstock.executor.ranks import (
    CommResource,
    HeartbeatStream,
    RankLayout,
    RankTask,
    SharedFiles,
    comm_resources,
    forget_graph_semaphores,
    join_address,
    keyed,
    wire,
)
from penstock.executor.ray.actors import Actors
from penstock.executor.ray.calls import Calls, Graph
from penstock.executor.ray.cluster import Cluster
from penstock.executor.ray.edges import load_communicator, open_edges
from penstock.executor.ray.placement import Placement, place
from penstock.executor.transport import LEAST_ANSWER, Transport, answer_bytes, open_rings
from penstock.executor.worker.actor import Actor

if TYPE_CHECKING:
    from penstock._native import StreamListener

PLACEMENT = 60.0
"""Timeout in seconds for the cluster to place the ranks."""
CALLED = 60.0
"""Timeout in seconds for ranks on other nodes to connect to the engine."""
SILENCE = 1.25
"""Seconds without a heartbeat after which a rank on another node counts as lost."""
NUMBER = 16
"""Maximum bytes of the first message on a new connection: the rank's number as text."""
ENVELOPE = 4096
"""Bytes reserved in a message for the data that Ray adds."""
GRAPHS = {"compiled-graph": "carried", "compiled-graph-tensors": "tensors"}
"""Control channels that are compiled graphs, each with the form in which rows (hidden states) are
sent between stages.
"""

log = logging.getLogger("penstock.executor")


@dataclass(frozen=True, slots=True)
class Launch:
    """Parameters for starting one engine on a cluster. `key` authenticates all streams."""

    layout: RankLayout
    config: EngineConfig
    directory: Path
    cluster: Cluster
    message_bytes: int
    communicator: type | None = None
    """Class of --ray-communicator."""
    report: Report = silent
    transport: Transport = field(default_factory=Transport)
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))


def connect_ray(
    layout: RankLayout,
    config: EngineConfig,
    directory: Path,
    placement_timeout: float = PLACEMENT,
    report: Report = silent,
) -> RanksExecutor:
    """Start the ranks; returns when all have loaded. `allocate` then runs a first step across them.

    Raises PenstockError if Ray is missing, the cluster is not reached or has no room, or with the
    reason of the first rank that cannot load.
    """
    _check(config)
    largest = max(layout.plan_bytes, layout.rows_bytes, layout.result_bytes, LEAST_ANSWER)
    messages = largest + ENVELOPE
    # Each rank writes to its own buffers, and the engine to one further set. The factor 2 is a
    # safety margin.
    store = 2 * (layout.size + 1) * (layout.depth + 1) * messages
    cleanup = ExitStack()
    try:
        cluster = Cluster(config.parallel.ray_address, layout.size, store)
        cleanup.callback(cluster.close)
        name = config.parallel.ray_communicator
        communicator = load_communicator(name) if name else None
        kind = DEVICES.get(config.compute.backend)
        unit = kind.unit if kind else None
        placement = place(cluster, layout, config.parallel.placement, placement_timeout, unit)
        cleanup.callback(cluster.release, placement.group)
        launch = Launch(layout, config, directory, cluster, messages, communicator, report)
        return _connect(launch, placement, cleanup)
    except BaseException:
        cleanup.close()
        raise


def _check(config: EngineConfig) -> None:
    channel = config.parallel.ray_channel
    if config.tiers.tiers and channel != "ring":
        # Transfers need the channel `ring`: as actor calls they would queue behind steps, and a
        # compiled graph carries only plans.
        raise InvalidValueError("--ray-channel", channel, "ring, which --kv-tier needs")
    if GRAPHS.get(channel) != "tensors":
        return
    if not of_torch(config.compute.backend):
        reason = f"the rows of --device {config.compute.backend} are no tensors"
        raise InvalidValueError("--ray-channel", channel, f"ring or compiled-graph: {reason}")
    if config.parallel.pipeline == 1:
        reason = "tensors go from stage to stage, and -pp is 1"
        raise InvalidValueError("--ray-channel", channel, f"ring or compiled-graph: {reason}")


def _connect(launch: Launch, placement: Placement, cleanup: ExitStack) -> RanksExecutor:
    transport, channel = launch.transport, launch.config.parallel.ray_channel
    streams: dict[int, HeartbeatStream] = {}
    cleanup.callback(_close_streams, streams)
    actors = Actors(launch.cluster, Actor, placement, transport.on_exit)
    cleanup.callback(actors.end)
    actors.greet()
    compile_first = partial(_compile, launch, actors, cleanup)
    after_ready = compile_first if channel in GRAPHS else RanksExecutor.compute_first_step
    executor = RanksExecutor(launch.layout, transport, actors, cleanup, after_ready, launch.report)
    _open_streams(launch, actors, placement, streams)
    tasks = _tasks(launch, actors, placement)
    with ExitStack() as files:
        if channel == "ring":
            shared = SharedFiles(launch.directory, str(os.getpid()))
            files.callback(shared.close)
            ends = open_rings(launch.layout, shared, transport, streams)
            for handle, task, end in zip(actors.handles, tasks, ends, strict=True):
                handle.serve.remote({"task": asdict(task), **end})
        else:
            _load(launch, actors, tasks)
        executor.await_loaded([each.node.address for each in placement.ranks])
    actors.everywhere("close_files")
    return executor


def _close_streams(streams: dict[int, HeartbeatStream]) -> None:
    for stream in streams.values():
        stream.close("the engine ended")


# Communication among ranks --------------------------------------------------------------------


def _open_streams(
    launch: Launch, actors: Actors, placement: Placement, streams: dict[int, HeartbeatStream]
) -> None:
    """Open a stream to each rank on another node. Every control channel needs these streams, for
    their heartbeats.
    """
    from penstock._native import StreamListener

    here = launch.cluster.here
    away = [rank for rank, each in enumerate(placement.ranks) if each.node.id != here]
    if not away:
        return
    address = next(node.address for node in launch.cluster.nodes() if node.id == here)
    listener = StreamListener(join_address(address, 0), launch.key)
    limit = launch.message_bytes
    calls = {
        rank: actors.handles[rank].call.remote(listener.address, launch.key, rank, limit)
        for rank in away
    }
    for _ in away:
        rank, stream = _accept(listener)
        ended = partial(actors.cut_off, rank)
        streams[rank] = HeartbeatStream(stream, limit, SILENCE, ended)
    actors.get(calls)


def _accept(listener: StreamListener) -> tuple[int, Any]:
    """Accept the connection of the next rank; returns its number and stream."""
    try:
        stream = listener.accept(CALLED)
        return int(stream.receive(CALLED, NUMBER) or b""), stream
    except ConnectionError as error:
        raise PenstockError(
            f"a rank on another node cannot reach {listener.address}: {error}. Ranks and engine "
            "need TCP to each other, on any port"
        ) from error


def _tasks(launch: Launch, actors: Actors, placement: Placement) -> list[RankTask]:
    layout, carried = launch.layout, GRAPHS.get(launch.config.parallel.ray_channel, "")
    resources = comm_resources(layout, [each.node for each in placement.ranks], carried)
    makers = sorted({each.maker for each in resources})
    calls = {
        maker: actors.handles[maker].make.remote(
            [each.request for each in resources if each.maker == maker]
        )
        for maker in makers
    }
    made = dict(zip(makers, map(iter, actors.get(calls)), strict=True))
    fields = [next(made[each.maker]) for each in resources]
    launch.transport.abort_handles += _abort_handles(launch, placement, resources, fields)
    wirings = [keyed(each, launch.key) for each in wire(layout, resources, fields, carried)]
    return layout.tasks(launch.config.to_json(), wirings)


def _abort_handles(
    launch: Launch,
    placement: Placement,
    resources: Sequence[CommResource],
    made: Sequence[dict[str, Any]],
) -> list[Any]:
    """Abort handles for the shared memory on this node. Waits on other nodes end when their actors
    end.
    """
    from penstock._native import AbortHandle

    return [
        AbortHandle(fields["path"])
        for resource, fields in zip(resources, made, strict=True)
        if "path" in fields and placement.ranks[resource.maker].node.id == launch.cluster.here
    ]


# Plans as calls -------------------------------------------------------------------------------


def _load(launch: Launch, actors: Actors, tasks: Sequence[RankTask]) -> None:
    layout, transport = launch.layout, launch.transport
    calls = Calls(launch.cluster, actors, layout.depth)
    transport.plans, transport.answers = calls, calls.answers
    transport.abort_handles += calls.answers
    last = layout.size - layout.tp
    calls.load(
        [
            {
                "task": asdict(task),
                "capacity": answer_bytes(layout, task.rank),
                "last": task.rank >= last,
            }
            for task in tasks
        ]
    )


def _compile(launch: Launch, actors: Actors, cleanup: ExitStack, executor: RanksExecutor) -> None:
    """Switch from calls to executions of a compiled graph, and compute the first step."""
    log.warning(
        "Ray's compiled graphs keep a CPU of each rank busy, even when there is nothing to compute"
    )
    began, transport = time.time_ns(), launch.transport
    graph = _graph(launch, actors)
    cleanup.callback(graph.close)
    transport.plans, transport.answers = graph, graph.answers
    transport.abort_handles.append(graph)
    executor.compute_first_step()
    actors.everywhere("forget_graph_semaphores")
    forget_graph_semaphores(began)


def _graph(launch: Launch, actors: Actors) -> Graph:
    layout, config, size = launch.layout, launch.config, launch.message_bytes
    overlap, edges = config.parallel.ray_overlap_comm, []
    if GRAPHS[config.parallel.ray_channel] == "tensors":
        edges = open_edges(
            actors,
            layout.tp,
            config.compute.backend,
            overlap=overlap,
            communicator=launch.communicator,
            buffer_bytes=size,
            key=launch.key,
        )
    try:
        graph = Graph(launch.cluster, actors, layout.tp, layout.depth, size, overlap, edges)
    except launch.cluster.ray.exceptions.RayTaskError as error:
        raise PenstockError(f"Ray's compiled graph: {error.cause}") from error
    if edges:
        actors.everywhere("close_files")
    return graph
