"""Record lists and watches of a real API server for the tests in Rust:
`python -m tests.kubernetes.record DIRECTORY`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path

from tests.kubernetes.bed import Bed
from tests.kubernetes.binary import VERSION
from tests.limits import HANG

PODS = "/api/v1/namespaces/models/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
LLAMA = {"app": "llama"}
LENGTH = 12
"""Seconds of a watch; a bookmark comes 2 s before its end."""


class Watch(threading.Thread):
    """The bytes of one watch, until the server ends it."""

    def __init__(self, bed: Bed, path: str, version: str, labels: str = "") -> None:
        super().__init__()
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        self._query = {**query, "timeoutSeconds": str(LENGTH), "labelSelector": labels}
        self._bed, self._path = bed, path
        self.answer = b""
        self.start()

    def run(self) -> None:
        with self._bed.client() as client:
            client.timeout = HANG
            self.answer = client.get(self._path, params=self._query).content


def pool(ports: list[int]) -> dict[str, object]:
    picker = {"name": "picker", "port": {"number": 9002}}
    target_ports = [{"number": port} for port in ports]
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "llama"},
        "spec": {
            "selector": {"matchLabels": LLAMA},
            "targetPorts": target_ports,
            "endpointPickerRef": picker,
        },
    }


def record(bed: Bed, directory: Path) -> None:
    """Pods come, get ready, drain and go; an InferencePool changes."""

    def keep(name: str, content: bytes) -> None:
        (directory / f"{name}-{VERSION}.json").write_bytes(content)

    bed.define_kinds()
    bed.namespace("models")
    bed.call("POST", POOLS, pool([8000]))
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        bed.pod("models", name, LLAMA, address)
    with bed.client() as client:
        pods = client.get(PODS, params={"labelSelector": "app=llama", "limit": "500"}).content
        first = client.get(PODS, params={"labelSelector": "app=llama", "limit": "1"}).content
        pools = client.get(POOLS, params={"fieldSelector": "metadata.name=llama"}).content
    keep("pods-list", pods)
    keep("pods-page", first)
    keep("pools-list", pools)
    version = json.loads(pods)["metadata"]["resourceVersion"]
    watches = [Watch(bed, PODS, version, "app=llama"), Watch(bed, POOLS, version)]
    bed.pod("models", "c", LLAMA, "10.0.0.3")
    bed.pod("models", "other", {"app": "other"}, "10.0.0.9")
    bed.set_ready("models", "b", False, "10.0.0.2")
    bed.delete_pod("models", "a", grace=30)
    bed.delete_pod("models", "a")
    bed.patch(f"{PODS}/c", {"metadata": {"labels": {"app": "other"}}})
    bed.patch(f"{POOLS}/llama", {"spec": {"targetPorts": [{"number": 8000}, {"number": 8001}]}})
    bed.call("DELETE", f"{POOLS}/llama")
    for watch in watches:
        watch.join()
    keep("pods-watch", watches[0].answer)
    keep("pools-watch", watches[1].answer)
    bed.forget_the_past()
    old = Watch(bed, PODS, "1")
    old.join()
    keep("pods-gone", old.answer)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, Bed(Path(folder)) as made:
        record(made, target)
