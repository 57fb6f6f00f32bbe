"""Ranks as Ray actors of one host that fail or stand still while requests run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.e2e import sse
from tests.e2e.conftest import Serve
from tests.e2e.losses import lose
from tests.e2e.server import eventually
from tests.e2e.test_faults import stopped
from tests.e2e.test_rank_faults import SHORT, check_traceback, nothing_left
from tests.e2e.test_ray import CHANNELS, RAY, ranks_below
from tests.fakes import faulty
from tests.ray_cluster import TOKEN, RayCluster, needs_ray

needs_ray()

FLAGS = [*RAY, "-pp", "2", "--max-model-len", "8000", "--engine-stall-timeout", "1"]
SLOW = pytest.mark.slow
ALL = [CHANNELS[0], *(pytest.param(channel, marks=SLOW) for channel in CHANNELS[1:])]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file through which ranks are told to fail."""
    return tmp_path_factory.mktemp("orders") / "orders"


@pytest.fixture(scope="module")
def cluster(orders: Path, repository: Path) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        paths = [str(repository), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        # Actors see the environment of their node.
        patch.setenv(faulty.VARIABLE, str(orders))
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
        for message in loss.messages:
            assert re.search(rf"rank {rank} failed in step \d+: {error}", message), message
        check_traceback(server.log[said:], rank, error)
        assert sse.complete(client, *SHORT) == expected
        pids += ranks_below(cluster.nodes[0].process.pid)
        assert len(pids) == 4


@pytest.mark.parametrize("channel", ALL)
def test_a_rank_that_stands_still_shows_in_health_and_goes_on_afterwards(
    serve: Serve, cluster: RayCluster, channel: str
) -> None:
    flags = [*FLAGS, "--ray-address", cluster.address, "--ray-channel", channel]
    with (
        nothing_left() as pids,
        serve(*flags) as server,
        server.client() as client,
        ThreadPoolExecutor() as pool,
    ):
        expected = sse.complete(client, *SHORT)
        engine = server.engine()
        pids += ranks_below(cluster.nodes[0].process.pid)
        assert len(pids) == 2
        for pid in pids:
            with stopped(pid):
                waiting = pool.submit(sse.complete, client, *SHORT)
                eventually(lambda: client.get("/health").status_code == 503, "an unhealthy server")
                assert "stuck" in client.get("/health").text
                assert not waiting.done()
            assert waiting.result() == expected
            eventually(lambda: client.get("/health").status_code == 200, "a healthy server")
        assert server.engine() == engine


@SLOW
def test_a_rank_that_stands_still_does_not_outlive_its_engine(serve: Serve, cluster: RayCluster) -> None:
    with nothing_left() as pids:
        server = serve(*FLAGS, "--ray-address", cluster.address)
        server.wait_ready()
        pids += ranks_below(cluster.nodes[0].process.pid)
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGSTOP)
        server.destroy()
