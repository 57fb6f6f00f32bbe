"""Ranks as Ray actors of one host that fail or stand still while requests run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import (
    SHORT,
    STALL,
    check_failure,
    check_standing_still,
    lose,
    nothing_left,
    take_orders,
)
from tests.e2e.test_ray import CHANNELS, RAY, ranks_below
from tests.fakes import faulty
from tests.ray_cluster import TOKEN, RayCluster, needs_ray

needs_ray()

FLAGS = [*RAY, "-pp", "2", "--max-model-len", "8000", *STALL]
SLOW = pytest.mark.slow
ALL = [CHANNELS[0], *(pytest.param(channel, marks=SLOW) for channel in CHANNELS[1:])]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with orders to fail for ranks."""
    return tmp_path_factory.mktemp("orders") / "orders"


@pytest.fixture(scope="module")
def cluster(orders: Path, repository: Path) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        # Actors see the environment of their node.
        take_orders(patch, repository, orders)
        with RayCluster(4) as made:
            yield made


@pytest.mark.parametrize("rank", [pytest.param(0, marks=SLOW), 1])
@pytest.mark.parametrize("channel", ALL)
def test_a_rank_that_fails_in_a_step_is_named_and_replaced(
    serve: Serve,
    cluster: RayCluster,
    orders: Path,
    channel: str,
    rank: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [*FLAGS, "--ray-address", cluster.address, "--ray-channel", channel]
    with (
        nothing_left() as pids,
        serve(*flags, module=faulty.NAME) as server,
        server.client() as client,
    ):
        expected = sse.complete(client, *SHORT)
        pids += ranks_below(cluster.nodes[0].process.pid)
        said = len(server.log)
        what = f"{channel}, rank {rank} told to raise"
        loss = lose(server, partial(faulty.order, orders, rank, "raise"), what, capsys)
        error = f"RuntimeError: {faulty.MESSAGE}"
        check_failure(loss, server.log[said:], rank, error)
        assert sse.complete(client, *SHORT) == expected
        pids += ranks_below(cluster.nodes[0].process.pid)
        assert len(pids) == 4


@pytest.mark.parametrize("channel", ALL)
def test_a_rank_that_stands_still_shows_in_health_and_goes_on_afterwards(
    serve: Serve, cluster: RayCluster, channel: str
) -> None:
    flags = [*FLAGS, "--ray-address", cluster.address, "--ray-channel", channel]
    with nothing_left() as pids, serve(*flags) as server, server.client() as client:
        engine = server.engine()
        pids += ranks_below(cluster.nodes[0].process.pid)
        assert len(pids) == 2
        check_standing_still(client, pids)
        assert server.engine() == engine


@SLOW
def test_a_rank_that_stands_still_does_not_outlive_its_engine(
    serve: Serve, cluster: RayCluster
) -> None:
    with nothing_left() as pids:
        server = serve(*FLAGS, "--ray-address", cluster.address)
        server.wait_ready()
        pids += ranks_below(cluster.nodes[0].process.pid)
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGSTOP)
        server.destroy()
