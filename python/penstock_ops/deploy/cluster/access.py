"""Access to a cluster's API server: through kubectl if installed, because it supports all login
methods; else over HTTPS with a token, a client certificate, or a credential plugin.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.config import cluster_access, default_kubeconfigs
from penstock.core import PenstockError
from penstock_ops.deploy.cluster.api import Api, HttpApi

TIMEOUT = 60
"""Timeout in seconds of a request, and of a login by a plugin."""


@dataclass(frozen=True, slots=True)
class Cluster:
    api: Api
    namespace: str
    """Default namespace of objects."""


@contextmanager
def connected(kubeconfig: Path | None, context: str, namespace: str) -> Iterator[Cluster]:
    """Connect to the cluster of a kubeconfig's context. Empty texts select the current ones."""
    kubectl = shutil.which("kubectl")
    with ExitStack() as stack:
        if kubectl is not None:
            words = [kubectl, *(["--kubeconfig", str(kubeconfig)] if kubeconfig else [])]
            words += ["--context", context] if context else []
            found = Cluster(stack.enter_context(_proxied(words)), namespace or _current(words))
        else:
            if context:
                raise PenstockError("--context needs kubectl; make it the current one")
            access = cluster_access(kubeconfig or _default())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
            found = Cluster(direct(access.cluster, folder), namespace or access.namespace)
        yield found


def _default() -> Path | None:
    """kubectl's default file, if it exists and KUBECONFIG is not set."""
    path = Path.home() / ".kube/config"
    return path if not default_kubeconfigs() and path.is_file() else None


class _SocketConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(str(self._path))


@contextmanager
def _proxied(kubectl: list[str]) -> Iterator[Api]:
    """Run `kubectl proxy` during the block, at a socket that only this user can open."""
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
            yield HttpApi(lambda: _SocketConnection(path))
        finally:
            process.terminate()
            process.communicate()


def _current(kubectl: list[str]) -> str:
    """The namespace of the context."""
    words = [*kubectl, "config", "view", "--minify", "-o", "jsonpath={..namespace}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    return done.stdout.strip() or "default"


def direct(cluster: Mapping[str, Any], folder: Path) -> Api:
    """Direct HTTPS access from the result of `penstock.config.cluster_access`. `folder` receives
    keys embedded in the kubeconfig, because Python's TLS reads keys from files.
    """
    url = urlsplit(str(cluster["server"]))
    login = _from_plugin(cluster["exec"]) if "exec" in cluster else dict(cluster)

    def headers() -> Mapping[str, str]:
        token = login.get("token")
        if not token:
            return {}
        text = token["text"] if "text" in token else Path(token["file"]).read_text()
        return {"authorization": f"Bearer {text.strip()}"}

    if url.scheme == "http":
        return HttpApi(lambda: HTTPConnection(url.netloc, timeout=TIMEOUT), headers)
    authorities = cluster.get("authorities")
    trusted = str(_file(authorities, folder / "authorities")) if authorities else None
    tls = ssl.create_default_context(cafile=trusted)
    if "certificate" in login:
        tls.load_cert_chain(
            _file(login["certificate"], folder / "certificate"), _file(login["key"], folder / "key")
        )
    return HttpApi(lambda: HTTPSConnection(url.netloc, timeout=TIMEOUT, context=tls), headers)


def _file(material: Mapping[str, str], path: Path) -> Path:
    """Path of the material. Embedded text is first written to `path`."""
    if "file" in material:
        return Path(material["file"])
    path.touch(mode=0o600)
    path.write_text(material["text"])
    return path


def _from_plugin(plugin: Mapping[str, Any]) -> dict[str, Any]:
    """Credentials printed by a plugin (ExecCredential), once: commands are short-lived."""
    added = [f"{key}={value}" for key, value in plugin["env"].items()]
    words = ["env", *added, plugin["program"], *plugin["args"]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    try:
        status = json.loads(done.stdout)["status"]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip()[-500:] or f"exit status {done.returncode}"
        raise PenstockError(f"{plugin['program']}: no credentials: {said}") from None
    found = {}
    if status.get("token"):
        found["token"] = {"text": status["token"]}
    if status.get("clientCertificateData"):
        found["certificate"] = {"text": status["clientCertificateData"]}
        found["key"] = {"text": status.get("clientKeyData", "")}
    return found
