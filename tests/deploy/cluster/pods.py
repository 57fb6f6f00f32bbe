"""Deployments of a small model on a real node, and clients that load them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import yaml

from penstock.cli.main import main
from tests.deploy.cluster.applied import Applied
from tests.deploy.cluster.node import Node
from tests.deploy.conftest import PLACES, of_a_start, of_this_machine
from tests.e2e.server import eventually
from tests.limits import HANG

MODEL = "SmolLM2-135M"
PORT = 8000
IMAGE = "localhost/penstock:1"
PLANNED = 30
"""Seconds of loading in the plan; the startup probe gives twice as many."""
MIB = 2**20
STREAMED = 64
"""Tokens of a streamed answer."""


class BrokenStreamError(Exception):
    """A stream that ended early, or whose text is not that of the others."""


class Deployed(Applied):
    """Manifests of a plan of one model on processors, whose pods run."""

    def __init__(self, node: Node, folder: Path, model: Path, namespace: str) -> None:
        super().__init__(node, folder, namespace)
        self.node = node
        self._plan, self._model = folder / "plan.yaml", model

    def write(
        self,
        *words: str,
        replicas: int = 1,
        start: Mapping[str, Any] | None = None,
        **choice: object,
    ) -> None:
        """Files of a plan; processors are shared with the tests, so pods ask for few."""
        plan = of_this_machine()
        plan["choice"] |= {"replicas": replicas, "max_model_len": 512, "max_num_seqs": 8, **choice}
        memory = {"total": 1024 * MIB, "weights": 100 * MIB, "kv": 64 * MIB}
        plan["memory"] = [
            {"ranks": [rank], "kept_free": 0, "shared_memory": 0, **memory}
            for rank in range(int(plan["choice"]["pipeline_parallel_size"]))
        ]
        plan["start"] = start or of_a_start(PLANNED)
        self._plan.write_text(yaml.safe_dump(plan))
        place = ("--host-path", str(self._model.parent), "--model-path", self._model.name)
        given = () if any(word in PLACES for word in words) else place
        made = ("-o", str(self.folder), "--name", "tiny")
        image = () if "--image" in words else ("--image", IMAGE)
        assert main(["deploy", "k8s", str(self._plan), *made, *image, *given, *words]) == 0
        for file in self.folder.glob("*.yaml"):
            file.write_text(file.read_text().replace('cpu: "1"', 'cpu: "50m"'))

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the only pod's container."""
        (pod,) = self.pods()
        for pid in self.node.processes(pod):
            os.kill(pid, number)

    def url(self, service: str = "tiny") -> str:
        spec = self.node.call("GET", self.path("services", service))["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}/v1"

    def complete(self, url: str, tokens: int = 4) -> str:
        """A completion, without another attempt."""
        with openai.OpenAI(base_url=url, api_key="-", timeout=HANG, max_retries=0) as client:
            answer = client.completions.create(
                model=MODEL, prompt="The capital of France is", max_tokens=tokens, temperature=0
            )
        return answer.choices[0].text

    def stream(self, url: str) -> str:
        """A completion whose tokens come one by one, long enough to be open while pods change."""
        with openai.OpenAI(base_url=url, api_key="-", timeout=HANG, max_retries=0) as client:
            pieces = list(
                client.completions.create(
                    model=MODEL,
                    prompt="The capital of France is",
                    max_tokens=STREAMED,
                    temperature=0,
                    stream=True,
                )
            )
        ends = [choice.finish_reason for piece in pieces for choice in piece.choices]
        text = "".join(choice.text for piece in pieces for choice in piece.choices)
        if len(pieces) < 2 or not any(ends):
            raise BrokenStreamError(f"{len(pieces)} events and no finish reason after {text!r}")
        return text

    @contextmanager
    def load(self, url: str, clients: int = 2, streams: int = 0) -> Iterator[list[str]]:
        """Requests one after the other from each client, and streams, each of which must be as the
        first one was; errors are in the list.
        """
        # kube-proxy writes its rules once a second: a Service refuses for a moment when it is new.
        eventually(lambda: _accepts(url), f"connections to {url}")
        done, failed, texts = threading.Event(), list[str](), set[str]()
        count = [0] * (clients + streams)

        def once(at: int) -> None:
            if at < clients:
                self.complete(url, 16)
                return
            text = self.stream(url)
            texts.add(text)
            if len(texts) > 1:
                raise BrokenStreamError(f"another text than before: {text!r}")

        def send(at: int) -> None:
            while not done.is_set():
                try:
                    once(at)
                    count[at] += 1
                except (openai.OpenAIError, httpx.HTTPError, BrokenStreamError) as error:
                    failed.append(_said(error))

        threads = [threading.Thread(target=send, args=(at,)) for at in range(clients + streams)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: all(count), "a first answer")
            yield failed
        finally:
            done.set()
            for thread in threads:
                thread.join()


def _accepts(url: str) -> bool:
    where = urlsplit(url)
    try:
        socket.create_connection((where.hostname, where.port), HANG).close()
    except OSError:
        return False
    return True


def _said(error: BaseException | None) -> str:
    """An error with its causes: the client says "Connection error" of all that ends one."""
    found = []
    while error is not None:
        found.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return f"{datetime.now(UTC):%H:%M:%S.%f} " + ", from ".join(found)
