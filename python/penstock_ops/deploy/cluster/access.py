"""Connects to the API server of the user's Kubernetes cluster: through kubectl if it is installed,
because it supports all ways to log in; otherwise through the gateway's client, with a token, a
client certificate, or the output of a login command.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from penstock.config import cluster_access, default_kubeconfigs
from penstock.core import PenstockError
from penstock_ops.deploy.cluster.api import Api

TIMEOUT = 60
"""Timeout in seconds of a request through kubectl."""


@dataclass(frozen=True, slots=True)
class Cluster:
    api: Api
    namespace: str
    """Namespace for objects whose manifest names none."""


@contextmanager
def connected(kubeconfig: Path | None, context: str, namespace: str) -> Iterator[Cluster]:
    """The cluster of a kubeconfig's context. An empty `context` or `namespace` means the current
    one.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        words = [kubectl, *(["--kubeconfig", str(kubeconfig)] if kubeconfig else [])]
        words += ["--context", context] if context else []
        current = _current(words)
        if not current and not context:
            # Here kubectl would try port 8080 of this machine. A wrong context it names itself.
            current = cluster_access(kubeconfig or _default()).namespace
        with _proxied(words) as api:
            yield Cluster(api, namespace or current)
        return
    if context:
        raise PenstockError("--context needs kubectl; make it the current one")
    from penstock import _native

    access = cluster_access(kubeconfig or _default())
    client = _native.KubernetesClient(json.dumps(access.cluster))
    yield Cluster(Api(client.request), namespace or access.namespace)


def _default() -> Path | None:
    """kubectl's default kubeconfig; None if KUBECONFIG names files, or if the default does not
    exist.
    """
    path = Path.home() / ".kube/config"
    return path if not default_kubeconfigs() and path.is_file() else None


def _request(path: Path, method: str, target: str, content: str, body: bytes) -> tuple[int, bytes]:
    """Send one HTTP request to a Unix socket, on a new connection. Returns status and body."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(TIMEOUT)
        stream.connect(str(path))
        connection = HTTPConnection("localhost")
        connection.sock = stream
        connection.request(method, target, body, {"content-type": content, "accept": "*/*"})
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def _proxied(kubectl: list[str]) -> Iterator[Api]:
    """Context in which `kubectl proxy` listens on a Unix socket that only this user can open."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "api"
        words = [*kubectl, "proxy", "--unix-socket", str(path)]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if b"Starting to serve" not in process.stdout.readline():
                said = process.stderr.read().decode(errors="replace").strip()
                raise PenstockError(f"kubectl proxy: {said or 'ended'}")
            yield Api(partial(_request, path))
        finally:
            process.terminate()
            process.communicate()


def _current(kubectl: list[str]) -> str:
    """The context's namespace, `default` if it names none; empty if there is no such context."""
    words = [*kubectl, "config", "view", "--minify", "-o", "jsonpath={..namespace}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    return "" if done.returncode else done.stdout.strip() or "default"
