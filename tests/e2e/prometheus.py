"""A real Prometheus that scrapes what a test has started."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from penstock.config.machine import free_port
from tests.e2e.server import eventually
from tests.limits import HANG


def program(name: str = "prometheus") -> str:
    """The path of Prometheus, or of promtool, which comes with it. Skips where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


class Prometheus:
    """Scrapes `jobs`, host:port of each by the name of the job, every second."""

    def __init__(self, directory: Path, jobs: Mapping[str, str], rules: Path | None = None) -> None:
        self.jobs = jobs
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in jobs.items()
            ],
        }
        path = directory / "prometheus.yml"
        path.write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [
                program(),
                f"--config.file={path}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=error",
            ]
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(HANG)

    def values(self, query: str) -> list[float]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=HANG)
        body = answer.json()
        assert body["status"] == "success", body
        return [float(sample["value"][1]) for sample in body["data"]["result"]]

    def numbers(self, query: str) -> list[float]:
        """The values of a query, once it has some that are numbers."""

        def found() -> list[float]:
            return [value for value in self.values(query) if not math.isnan(value)]

        return eventually(found, query)

    def value(self, query: str) -> float:
        """The one value of a query, once it has one that is a number."""
        (value,) = self.numbers(query)
        return value

    def up(self) -> bool:
        """Whether it has scraped all targets. One that is still starting answers 503."""
        try:
            if httpx.get(f"{self.url}/-/ready", timeout=HANG).status_code != httpx.codes.OK:
                return False
        except httpx.TransportError:
            return False
        return self.values("up") == [1.0] * len(self.jobs)
