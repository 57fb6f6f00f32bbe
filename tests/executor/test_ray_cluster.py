"""Joining a cluster: what is missing is named before anything hangs."""

from __future__ import annotations

import os
import sys

import pytest
from penstock.core import PenstockError
from penstock.executor.ray.cluster import Cluster

from tests.ray_cluster import free_port


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is prepared for Ray, and put back afterwards."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, os.environ.get(name, "disabled" if name == "RAY_AUTH_MODE" else "0"))


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PenstockError, match=r"needs Ray: pip install 'penstock\[ray\]'"):
        Cluster("auto", 1, 0)


def test_a_cluster_that_is_not_there_is_named_at_once() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'penstock[ray]'")
    with pytest.raises(PenstockError, match=r"no Ray cluster at 127.0.0.1:\d+: .*refused.*--ray-address"):
        Cluster(f"127.0.0.1:{free_port()}", 1, 0)
