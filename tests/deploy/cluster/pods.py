"""Deployments of a small model on a real node, and clients that load them."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import yaml
from penstock.cli.main import main
from penstock.deploy.cluster.access import connected
from penstock.deploy.cluster.manifests import Resolver, objects
from penstock.deploy.cluster.snapshot import Snapshot, read
from penstock.deploy.cluster.status import report

from tests.deploy.cluster.node import Node
from tests.deploy.cluster.recorded import save
from tests.deploy.conftest import of_this_machine
from tests.e2e.server import HANG, eventually
from tests.kubernetes.bed import ADMIN

MODEL = "SmolLM2-135M"
PORT = 8000
IMAGE = "localhost/penstock:1"
PLANNED = 30
"""Seconds of loading in the plan; the startup probe gives twice as many."""
PATIENCE = 240
"""Seconds; a container that stands still is killed when its time to end is over."""
MIB = 2**20


class Deployed:
    """Manifests of a plan of one model, in a namespace of their own."""

    def __init__(self, node: Node, folder: Path, model: Path, namespace: str) -> None:
        self.node, self.namespace = node, namespace
        self.folder = folder / "manifests"
        self._plan, self._model = folder / "plan.yaml", model
        node.namespace(namespace)
        config = node.kubeconfig(f"{namespace}.yaml", {"token": ADMIN}, namespace)
        self.where = ("--kubeconfig", str(config))

    def write(self, *words: str, replicas: int = 1, **choice: object) -> None:
        """Files of a plan; processors are shared with the tests, so pods ask for few."""
        plan = of_this_machine()
        plan["choice"] |= {"replicas": replicas, "max_model_len": 512, "max_num_seqs": 8, **choice}
        memory = {"total": 1024 * MIB, "weights": 100 * MIB, "kv": 64 * MIB}
        plan["memory"] = [
            {"ranks": [rank], "kept_free": 0, "shared_memory": 0, **memory}
            for rank in range(int(plan["choice"]["pipeline_parallel_size"]))
        ]
        plan["thresholds"]["storage_gb_per_s"]["seconds"] = PLANNED
        self._plan.write_text(yaml.safe_dump(plan))
        place = ("--host-path", str(self._model.parent), "--model-path", self._model.name)
        given = () if "--host-path" in words else place
        made = ("-o", str(self.folder), "--name", "tiny")
        image = () if "--image" in words else ("--image", IMAGE)
        assert main(["deploy", "k8s", str(self._plan), *made, *image, *given, *words]) == 0
        for file in self.folder.glob("*.yaml"):
            file.write_text(file.read_text().replace('cpu: "1"', 'cpu: "50m"'))

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file}:\n{text}"
        path.write_text(text.replace(old, new))

    def run(self, command: str, *words: str) -> int:
        """The status of `penstock deploy COMMAND`."""
        return main(["deploy", command, str(self.folder), *self.where, *words])

    def snapshot(self) -> Snapshot:
        """What `penstock deploy status` looks at."""
        with connected(Path(self.where[1]), "", self.namespace) as cluster:
            resolver = Resolver(cluster.api, cluster.namespace)
            references = [resolver.reference(located) for located in objects(self.folder)]
            return read(cluster.api, references)

    def cause(self, words: str) -> str:
        """Wait until the first cause has these words; what status prints."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            snapshot = self.snapshot()
            lines = report(snapshot)
            cause = next((line for line in lines if line.startswith("cause: ")), "")
            if words in cause:
                name = re.sub(r"[^a-z]+", "-", words.lower()).strip("-")
                save(snapshot, self.folder.parent / f"{name}.json")
                return "\n".join(lines)
            time.sleep(0.5)
        said = "\n".join(lines)
        raise AssertionError(f"{words}: not within {PATIENCE} s; the last status:\n{said}")

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the only pod's container."""
        (pod,) = self.pods()
        for pid in self.node.processes(pod):
            os.kill(pid, number)

    def path(self, kind: str, name: str = "") -> str:
        groups = {"deployments": "/apis/apps/v1", "pods": "/api/v1", "services": "/api/v1"}
        base = f"{groups[kind]}/namespaces/{self.namespace}/{kind}"
        return f"{base}/{name}" if name else base

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        """Pods that are not ending, by component where one is given."""
        prefix = "app.kubernetes.io/"
        wanted = {f"{prefix}{key}": value for key, value in labels.items()}
        return [
            pod
            for pod in self.node.pods(self.namespace)
            if not pod["metadata"].get("deletionTimestamp")
            and wanted.items() <= pod["metadata"]["labels"].items()
        ]

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

    @contextmanager
    def load(self, url: str, clients: int = 2) -> Iterator[list[str]]:
        """Requests one after the other from each client; errors are in the list."""
        done, failed = threading.Event(), list[str]()
        count = [0] * clients

        def send(at: int) -> None:
            while not done.is_set():
                try:
                    self.complete(url, 16)
                    count[at] += 1
                except openai.OpenAIError as error:
                    failed.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=send, args=(at,)) for at in range(clients)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: all(count), "a first answer")
            yield failed
        finally:
            done.set()
            for thread in threads:
                thread.join()

    def ready(self, count: int) -> None:
        """Wait for pods that serve, as many as that and no others."""

        def serve() -> bool:
            pods = self.node.pods(self.namespace)
            return len(pods) == count and all(map(is_ready, pods))

        eventually(serve, f"{count} pods")


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
