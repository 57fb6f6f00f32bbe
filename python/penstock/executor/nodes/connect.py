"""The executor for ranks on several nodes: rendezvous of the nodes, start of the ranks, connection
to them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.config import EngineConfig
from penstock.core.progress import Report, silent
from penstock.executor.nodes.messages import Job, Made, Make, Opened, Start, encode, session_key
from penstock.executor.nodes.rank_assignment import Node, hosts, ranks_of
from penstock.executor.nodes.rendezvous import Member, Rendezvous
from penstock.executor.nodes.world import World
from penstock.executor.processes import Processes
from penstock.executor.rank_group import RanksExecutor
from penstock.executor.ranks import (
    CommResource,
    LocalResources,
    RankLayout,
    SharedFiles,
    comm_resources,
    keyed,
    wire,
)
from penstock.executor.transport import (
    LEAST_ANSWER,
    StreamAnswers,
    Transport,
    answer_bytes,
    open_rings,
)

MAKE = 30.0
"""Timeout in seconds for a node to create the shared memory and ports of its ranks."""
CALL = 60.0
"""Timeout in seconds for ranks on other nodes to start and connect to the engine."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Parameters for starting one engine on several nodes. `key` authenticates all streams."""

    layout: RankLayout
    config: EngineConfig
    directory: Path
    key: bytes
    members: Sequence[Member]
    hosts: Sequence[Node]
    session: str = field(default_factory=lambda: secrets.token_hex(16))


def connect_nodes(
    layout: RankLayout,
    config: EngineConfig,
    directory: Path,
    key: bytes,
    fingerprint: Mapping[str, str],
    report: Report = silent,
) -> RanksExecutor:
    """Start the ranks; returns when all have loaded. `allocate` then runs a first step across them.

    Raises PenstockError with the node that is missing or has other settings, or with the reason of
    the first rank that cannot load.
    """
    cleanup = ExitStack()
    try:
        parallel = config.parallel
        rendezvous = Rendezvous(parallel.master, key, fingerprint, parallel.nnodes)
        cleanup.callback(rendezvous.close)
        members = rendezvous.gather(parallel.join_timeout)
        # Node 0's address is the address that the first other node connected to.
        nodes = [Node(0, members[0].called), *(member.node for member in members)]
        launch = Launch(layout, config, directory, key, members, hosts(layout, nodes))
        return _connect(launch, rendezvous, cleanup, report)
    except BaseException:
        cleanup.close()
        raise


def _connect(
    launch: Launch, rendezvous: Rendezvous, cleanup: ExitStack, report: Report
) -> RanksExecutor:
    with ExitStack() as files:
        local = LocalResources(launch.directory)
        files.callback(local.close)
        wirings = _make_resources(launch, local)
        transport = Transport(abort_handles=[*local.files.abort_handles()])
        world = World(launch.members, launch.hosts, transport.on_exit)
        cleanup.callback(world.end)
        executor = RanksExecutor(
            launch.layout, transport, world, cleanup, RanksExecutor.compute_first_step, report
        )

        def check() -> None:
            # A rank that has connected may already have sent the reason of a loss.
            transport.answers = [StreamAnswers(stream) for stream in rendezvous.ranks.values()]
            executor.check()

        limit = _start_elsewhere(launch, wirings)
        away = [rank for rank, node in enumerate(launch.hosts) if node.id]
        streams = rendezvous.take_ranks(
            away, launch.session, limit, CALL, check, world.on_stream_end
        )
        shared = SharedFiles(launch.directory)
        files.callback(shared.close)
        ends = open_rings(launch.layout, shared, transport, streams)
        descriptors = [*local.files.descriptors, *shared.descriptors]
        world.add_processes(_start_here(launch, world, wirings, ends, descriptors))
        executor.check()
        executor.await_loaded([node.address for node in launch.hosts])
    for member in launch.members:
        member.stream.send(encode(Opened()))
    return executor


def _make_resources(launch: Launch, local: LocalResources) -> list[dict[str, Any]]:
    """Create communication resources on all nodes; returns the ranks' wiring without keys."""
    resources = comm_resources(launch.layout, launch.hosts)

    def of(node: int) -> list[CommResource]:
        return [each for each in resources if launch.hosts[each.maker].id == node]

    made = {0: iter(local.make([each.request for each in of(0)]))}
    local.files.seal()
    for member in launch.members:
        node = member.node.id
        asked = Make(launch.session, [list(each.request) for each in of(node)])
        made[node] = iter(member.ask(asked, Made, MAKE).made)
    fields = [next(made[launch.hosts[each.maker].id]) for each in resources]
    return wire(launch.layout, resources, fields)


def _start_elsewhere(launch: Launch, wirings: Sequence[dict[str, Any]]) -> int:
    """Start the ranks of the other nodes; returns the maximum size in bytes of a message to or from
    a rank.
    """
    layout = launch.layout
    limit = max(layout.plan_bytes, layout.result_bytes, LEAST_ANSWER)
    held = ranks_of(layout, len(launch.members) + 1)
    for member in launch.members:
        jobs = [
            Job(
                rank=rank,
                reads=rank == layout.reader,
                shard=layout.shards[rank],
                wiring=wirings[rank],
                capacity=answer_bytes(layout, rank),
                limit=limit,
            )
            for rank in held[member.node.id]
        ]
        member.stream.send(encode(Start([asdict(job) for job in jobs])))
    return limit


def _start_here(
    launch: Launch,
    world: World,
    wirings: Sequence[dict[str, Any]],
    ends: Sequence[dict[str, Any]],
    descriptors: Sequence[int],
) -> Processes:
    key = session_key(launch.key, launch.session)
    tasks = launch.layout.tasks(launch.config.to_json(), [keyed(wiring, key) for wiring in wirings])
    own = ranks_of(launch.layout, len(launch.members) + 1)[0]
    jobs = [json.dumps({"task": asdict(tasks[rank]), **ends[rank]}) for rank in own]
    return Processes(jobs, descriptors, world.on_local_exit, host=world.host)
