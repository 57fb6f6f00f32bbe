"""Joining a cluster: what is missing is named before anything hangs."""

from __future__ import annotations

import sys

import pytest

from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock.executor.ray.cluster import Cluster
from tests.ray_cluster import TOKEN


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all test clusters: the first import of Ray decides for the process."""
    for name, value in {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
    }.items():
        monkeypatch.setenv(name, value)


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PenstockError, match=r"needs Ray: pip install 'penstock\[ray\]'"):
        Cluster("auto", 1, 0)


@pytest.mark.ray
def test_a_cluster_that_is_not_there_is_named_at_once() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'penstock[ray]'")
    with pytest.raises(
        PenstockError, match=r"no Ray cluster at 127.0.0.1:\d+: .*refused.*--ray-address"
    ):
        Cluster(f"127.0.0.1:{free_port()}", 1, 0)
