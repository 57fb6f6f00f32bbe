"""etcd and a real Kubernetes API server on the loopback interface, without nodes: the status of
pods is written by the tests.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from penstock.config.machine import free_port
from tests.e2e.server import eventually
from tests.kubernetes.binary import binary

CRDS = Path(__file__).parents[1] / "fixtures/kubernetes"
EXPERIMENTAL = "inference.networking.x-k8s.io"
LOOSE = {
    "inferencepools": "InferencePool",
    "inferenceobjectives": "InferenceObjective",
    "inferencemodelrewrites": "InferenceModelRewrite",
    "inferencemodels": "InferenceModel",
}
"""Kinds of the experimental group, which the bed has without their schemas."""

ADMIN = "admin-token"
SERVICES = "10.96.0.0/16"
"""Addresses of Services."""


class Bed:
    """A cluster in `folder`; leaving the block ends it. `inside` are words that run a command where
    `address` is.
    """

    server_options: Sequence[str] = ("--disable-admission-plugins", "ServiceAccount")
    """A pod would wait for the controller that makes service accounts."""

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", inside: Sequence[str] = ()
    ) -> None:
        self.folder, self.address = folder, address
        self._binary, self._inside = binary(), inside
        self._etcd_port, self._peer_port, self.port = free_port(), free_port(), free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self.openssl("genrsa", "-out", "sa.key", "2048")
        authority = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        self.openssl(*authority, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        self._start(
            *("etcd", "--data-dir", "etcd", "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", self._etcd_url, "--advertise-client-urls", self._etcd_url),
            *("--listen-peer-urls", f"http://127.0.0.1:{self._peer_port}"),
        )

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._etcd_port}"

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def authority(self) -> Path:
        """What the API server's certificate is believed by."""
        return self.folder / "certs/apiserver.crt"

    def __enter__(self) -> Self:
        self.start_server()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._started):
            process.kill()
            process.wait()

    def start_server(self) -> None:
        """Ready when it answers so."""
        self._server = self._start(
            *("kube-apiserver", "--etcd-servers", self._etcd_url, "--cert-dir", "certs"),
            *("--bind-address", self.address, "--secure-port", str(self.port)),
            *("--token-auth-file", "tokens.csv", "--client-ca-file", "ca.crt"),
            *("--authorization-mode", "RBAC", "--endpoint-reconciler-type", "none"),
            *("--service-account-issuer", "https://bed", "--service-account-key-file", "sa.key"),
            *("--service-account-signing-key-file", "sa.key"),
            *("--service-cluster-ip-range", SERVICES),
            *self.server_options,
        )
        eventually(self._is_ready, "the API server")

    def kill_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def forget_the_past(self) -> None:
        """Compact all versions away, also those that the API server has in memory."""
        kept = self.call("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"]
        self.kill_server()
        body = {"revision": kept, "physical": True}
        httpx.post(f"{self._etcd_url}/v3/kv/compaction", json=body).raise_for_status()
        self.start_server()

    def freeze_server(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGSTOP)

    def thaw_server(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGCONT)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        return self._run(self._binary, *words)

    def _run(self, program: Path | str, *words: str) -> subprocess.Popen[bytes]:
        """Start a program of the cluster; its output goes to a log with the name of its first word,
        or its own.
        """
        name = words[0] if program == self._binary else Path(program).name
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [*self._inside, str(program), *words]
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def _is_ready(self) -> bool:
        try:
            return self.client().get("/readyz").status_code == 200
        except (httpx.TransportError, OSError):
            return False

    def client(self, token: str = ADMIN) -> httpx.Client:
        trust = ssl.create_default_context(cafile=str(self.authority))
        return httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {token}"}, verify=trust
        )

    def call(self, method: str, path: str, body: object = None, **headers: str) -> dict[str, Any]:
        """One request of the administrator; an error, with the answer, unless it goes well."""
        content = None if body is None else json.dumps(body)
        given = {"content-type": "application/json", **headers}
        with self.client() as client:
            answer = client.request(method, path, content=content, headers=given)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        found: dict[str, Any] = answer.json()
        return found

    def patch(self, path: str, change: object) -> dict[str, Any]:
        merge = {"content-type": "application/merge-patch+json"}
        return self.call("PATCH", path, change, **merge)

    def define_kinds(self) -> None:
        """The custom resource definitions: InferencePool v1 as published, the others loosely."""
        found = [yaml.safe_load((CRDS / "inferencepools.yaml").read_text())]
        found += [_loose(plural, kind) for plural, kind in LOOSE.items()]
        for one in found:
            self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
            group = one["spec"]["group"]
            version = one["spec"]["versions"][0]["name"]
            path = f"/apis/{group}/{version}/{one['spec']['names']['plural']}"
            eventually(lambda path=path: self._is_there(path), path)  # type: ignore[misc]

    def _is_there(self, path: str) -> bool:
        with self.client() as client:
            return client.get(path).is_success

    def namespace(self, name: str) -> None:
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def pod(self, namespace: str, name: str, labels: Mapping[str, str], address: str) -> None:
        """A pod that is ready at an address, as a kubelet would say."""
        container = {"name": "engine", "image": "none"}
        spec = {
            "containers": [container],
            "nodeName": "none",
            "automountServiceAccountToken": False,
        }
        pods = f"/api/v1/namespaces/{namespace}/pods"
        pod = {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
        self.call("POST", pods, pod)
        self.set_ready(namespace, name, True, address)

    def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/api/v1/namespaces/{namespace}/pods")[
            "items"
        ]
        return found

    def set_ready(self, namespace: str, name: str, ready: bool, address: str | None = None) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
        status: dict[str, object] = {"phase": "Running", "conditions": [condition]}
        if address is not None:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        self.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})

    def delete_pod(self, namespace: str, name: str, grace: int = 0) -> None:
        """With grace it stays, marked, until the kubelet that is not here has ended it."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds={grace}"
        self.call("DELETE", path)

    def kubeconfig(self, name: str, user: Mapping[str, object], namespace: str = "default") -> Path:
        """A file with one context, in which `user` asks."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        context = {"cluster": "bed", "user": "user", "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "contexts": [{"name": "bed", "context": context}],
            "users": [{"name": "user", "user": dict(user)}],
        }
        file = self.folder / name
        file.write_text(yaml.safe_dump(content))
        return file


def _loose(plural: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha2",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    annotations = {"api-approved.kubernetes.io": "unapproved, for a test"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{EXPERIMENTAL}", "annotations": annotations},
        "spec": {
            "group": EXPERIMENTAL,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [version],
        },
    }
