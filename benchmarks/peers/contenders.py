"""The two kinds of system that take part: an HTTP server, and OpenVINO, which has none."""

import json
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.client import Client
from peers.processes import Meter, ProcessTree
from peers.workloads import WARM_UP, Workload

POLL_S = 0.02


class Contender(ABC):
    """One system under test. Subclasses say how it becomes ready and how it runs one workload."""

    tree: ProcessTree

    def __init__(
        self, name: str, numerics: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.numerics = numerics
        self.command = list(command)
        self.environment = dict(environment)
        self.ready_s = 0.0

    def start(self, logs: Path, patience: float) -> None:
        """Start the process and wait for it; `ready_s` is the wall time from exec to the first readiness."""
        begin = time.monotonic()
        self._launch(logs / f"{self.name}.log")
        while not self._ready():
            if not self.tree.alive():
                raise RuntimeError(f"{self.name} ended while starting: see {self.tree.log}")
            if time.monotonic() - begin > patience:
                raise RuntimeError(f"{self.name} was not ready after {patience:.0f} s: see {self.tree.log}")
            time.sleep(POLL_S)
        self.ready_s = round(time.monotonic() - begin, 2)

    def warm_up(self) -> None:
        """Two short runs that are not recorded."""
        for workload in WARM_UP:
            self._run(workload, workload.seed(0, 0))

    def measure(self, workload: Workload, seed: int) -> dict[str, float]:
        """One run with its CPU shares and, after it, the memory of all processes."""
        meter = Meter(self.tree)
        numbers = self._run(workload, seed)
        return {**numbers, **meter.read(), "pss_mb": self.tree.pss_mb()}

    def _launch(self, log: Path) -> None:
        self.tree = ProcessTree(self.command, self.environment, log)

    @abstractmethod
    def _ready(self) -> bool: ...

    @abstractmethod
    def _run(self, workload: Workload, seed: int) -> dict[str, float]: ...


class Server(Contender):
    """A contender that speaks the OpenAI API."""

    def __init__(
        self,
        name: str,
        numerics: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        client: Client,
        port: int,
        ready_path: str,
    ) -> None:
        super().__init__(name, numerics, command, environment)
        self._client = client
        self._url = f"http://127.0.0.1:{port}"
        self._ready_path = ready_path
        self._model = ""

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._url + self._ready_path, timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def _run(self, workload: Workload, seed: int) -> dict[str, float]:
        if not self._model:
            with urllib.request.urlopen(self._url + "/v1/models", timeout=10) as answer:
                self._model = json.load(answer)["data"][0]["id"]
        return self._client.run(self._url, self._model, workload, seed)


class OpenVino(Contender):
    """OpenVINO GenAI, driven through openvino_worker.py."""

    def _launch(self, log: Path) -> None:
        self.tree = ProcessTree(self.command, self.environment, log, piped=True)

    def _pipes(self) -> tuple[Any, Any]:
        return self.tree.root.stdin, self.tree.root.stdout

    def _ready(self) -> bool:
        return "ready" in self._answer()

    def _answer(self) -> dict[str, float]:
        line = self._pipes()[1].readline()
        if not line:
            raise RuntimeError(f"{self.name} ended: see {self.tree.log}")
        return json.loads(line)

    def _run(self, workload: Workload, seed: int) -> dict[str, float]:
        sink = self._pipes()[0]
        sink.write(json.dumps({**asdict(workload), "seed": seed}) + "\n")
        sink.flush()
        return self._answer()
