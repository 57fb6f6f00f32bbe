"""Manifests in a namespace of a real cluster, and what `penstock deploy` does and says there."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from penstock.cli.main import main
from penstock_ops.deploy.cluster.access import connected
from penstock_ops.deploy.cluster.manifests import Resolver, objects
from penstock_ops.deploy.cluster.readiness import is_true
from penstock_ops.deploy.cluster.snapshot import Snapshot, read
from penstock_ops.deploy.cluster.status import report
from tests.deploy.cluster.control_plane import ControlPlane
from tests.deploy.cluster.recorded import save
from tests.e2e.server import eventually
from tests.kubernetes.bed import ADMIN
from tests.limits import HANG

"""Seconds; a container that stands still is killed when its time to end is over."""


class Applied:
    """A directory of manifests and a namespace of its own."""

    def __init__(self, cluster: ControlPlane, folder: Path, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.folder = folder / "manifests"
        cluster.namespace(namespace)
        config = cluster.kubeconfig(f"{namespace}.yaml", {"token": ADMIN}, namespace)
        self.where = ("--kubeconfig", str(config))

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

    def cause(self, words: str, *others: str) -> str:
        """Wait until the first cause has these words, and what status prints has others; all of
        it.
        """
        end = time.monotonic() + HANG
        while time.monotonic() < end:
            snapshot = self.snapshot()
            lines = report(snapshot)
            cause = next((line for line in lines if line.startswith("cause: ")), "")
            if words in cause and all(other in "\n".join(lines) for other in others):
                name = re.sub(r"[^a-z]+", "-", words.lower()).strip("-")
                save(snapshot, self.folder.parent / f"{name}.json")
                return "\n".join(lines)
            time.sleep(0.5)
        said = "\n".join(lines)
        raise AssertionError(f"{words}: not within {HANG:.0f} s; the last status:\n{said}")

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
            for pod in self.cluster.pods(self.namespace)
            if not pod["metadata"].get("deletionTimestamp")
            and wanted.items() <= pod["metadata"]["labels"].items()
        ]

    def ready(self, count: int) -> None:
        """Wait for pods that serve, as many as that and no others."""

        def serve() -> bool:
            pods = self.cluster.pods(self.namespace)
            return len(pods) == count and all(is_true(pod, "Ready") for pod in pods)

        eventually(serve, f"{count} pods")
