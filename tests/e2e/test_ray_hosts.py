"""Ranks on three Ray nodes with addresses of their own, in network namespaces, and the loss of a
node.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import lose
from tests.e2e.server import Server, eventually
from tests.e2e.test_ray import ranks_below
from tests.namespaces import Hosts
from tests.processes import is_alive, memory_files
from tests.ray_cluster import TOKEN, RayCluster, needs_ray

needs_ray()

CHANNELS = ["ring", "compiled-graph", "actor"]
FLAGS = [
    "--distributed-executor-backend",
    "ray",
    "--placement",
    "strict-spread",
    "--max-model-len",
    "8000",
]
# Greedy tokens of different cuts are the same where arithmetic is exact enough: not with int8
# activations.
EXACT = ["--quantization", "none"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(hosts: Hosts) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with RayCluster(2, hosts.addresses[0], hosts.inside(0)) as made:
            for host in (1, 2):
                made.add(2, hosts.addresses[host], hosts.inside(host))
            yield made


@pytest.fixture
def start(serve: Serve, hosts: Hosts, cluster: RayCluster) -> Callable[..., Server]:
    """A server on the first host that listens for this one."""

    def started(*flags: str) -> Server:
        where = ["--ray-address", cluster.address, "--host", hosts.addresses[0]]
        return serve(*FLAGS, *where, *flags, prefix=hosts.inside(0))

    return started


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "channel", [CHANNELS[0], *(pytest.param(each, marks=SLOW) for each in CHANNELS[1:])]
)
def test_stages_on_three_hosts_give_the_tokens_of_one(
    start: Callable[..., Server], serve: Serve, hosts: Hosts, channel: str
) -> None:
    files = memory_files()
    with serve(*EXACT) as alone, alone.client() as client:
        expected = sse.complete(client, "Once upon a time", 32)
    grid = ["-tp", "2", "-pp", "3"] if channel == "ring" else ["-pp", "3"]
    with start("--ray-channel", channel, *grid, *EXACT) as server, server.client() as client:
        before = [hosts.received(host) for host in range(3)]
        assert sse.complete(client, "Once upon a time", 32) == expected
        moved = [hosts.received(host) - was for host, was in enumerate(before)]
        # A residual stream is 576 numbers of 4 bytes for each token.
        assert all(bytes_ > 32 * 576 * 4 for bytes_ in moved[1:])
        for address in hosts.addresses:
            assert server.lines("loaded", f"of {address})")
    assert memory_files() <= files


@pytest.mark.parametrize(
    "channel", [CHANNELS[0], *(pytest.param(each, marks=SLOW) for each in CHANNELS[1:])]
)
def test_a_host_that_is_lost_is_noticed_and_replaced(
    start: Callable[..., Server],
    hosts: Hosts,
    cluster: RayCluster,
    channel: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = memory_files()
    with start("-pp", "2", "--ray-channel", channel) as server, server.client() as client:
        expected = sse.complete(client, "Once upon a time", 8)
        second = used(server, hosts)
        stranded = ranks_below(cluster.nodes[second].process.pid)
        assert len(stranded) == 1
        loss = lose(server, partial(hosts.cut, second), f"{channel}, a host cut off", capsys)
        assert all(f"rank 1 (on {hosts.addresses[second]}" in message for message in loss.messages)
        assert sse.complete(client, "Once upon a time", 8) == expected
        third = used(server, hosts)
        assert {second, third} == {1, 2}
        eventually(lambda: not any(map(is_alive, stranded)), "the end of a rank that is cut off")
        # The one that was cut off has given up, as Ray's do, or goes on; a new one takes its place.
        hosts.mend(second)
        cluster.nodes[second].stop()
        cluster.nodes[second] = cluster.add(2, hosts.addresses[second], hosts.inside(second))
        cluster.nodes.pop()
        raylet = cluster.nodes[third].raylet()
        harm = partial(os.kill, raylet, signal.SIGKILL)
        loss = lose(server, harm, f"{channel}, a raylet killed", capsys)
        assert all("rank 1" in message for message in loss.messages)
        assert sse.complete(client, "Once upon a time", 8) == expected
        assert used(server, hosts) == second
        cluster.nodes[third].stop()
        cluster.nodes[third] = cluster.add(2, hosts.addresses[third], hosts.inside(third))
        cluster.nodes.pop()
    assert memory_files() <= before


@SLOW
def test_a_rank_elsewhere_that_stands_still_is_taken_for_lost(
    start: Callable[..., Server],
    hosts: Hosts,
    cluster: RayCluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with start("-pp", "2") as server, server.client() as client:
        expected = sse.complete(client, "Once upon a time", 8)
        (rank,) = ranks_below(cluster.nodes[used(server, hosts)].process.pid)
        loss = lose(
            server, partial(os.kill, rank, signal.SIGSTOP), "a rank elsewhere stopped", capsys
        )
        assert all("nothing was heard for" in message for message in loss.messages)
        assert sse.complete(client, "Once upon a time", 8) == expected
        eventually(lambda: not is_alive(rank), "the end of the rank that stands still")


def used(server: Server, hosts: Hosts) -> int:
    """The host that holds the last stage now."""
    line = server.lines("rank 1 loaded")[-1]
    return next(at for at, address in enumerate(hosts.addresses) if f"of {address})" in line)
