"""An API server of dictionaries: objects by path, applied and deleted over HTTP as the real one
does it, without controllers.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

KINDS = {
    "/api/v1": [
        ("Namespace", "namespaces", False),
        ("Node", "nodes", False),
        ("PersistentVolumeClaim", "persistentvolumeclaims", True),
        ("Pod", "pods", True),
        ("Service", "services", True),
    ],
    "/apis/apps/v1": [("Deployment", "deployments", True)],
    "/apis/batch/v1": [("Job", "jobs", True)],
    "/apis/networking.k8s.io/v1": [("NetworkPolicy", "networkpolicies", True)],
    "/apis/policy/v1": [("PodDisruptionBudget", "poddisruptionbudgets", True)],
}
TOKEN = "let-me-in"


class FakeServer:
    """Answers on the loopback interface until the block ends."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        """By path."""
        self.logs: dict[str, str] = {}
        """By path of the pod."""
        self.refused: dict[str, tuple[int, dict[str, Any]]] = {}
        """Status and answer of requests to a path."""
        self.requests: list[str] = []
        self._version = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_PATCH(self) -> None:
                self._answer("PATCH")

            def do_DELETE(self) -> None:
                self._answer("DELETE")

            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def _answer(self, method: str) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.headers.get("authorization") != f"Bearer {TOKEN}":
                    status, found = 401, fake.failure(401, "Unauthorized")
                else:
                    status, found = fake.answer(method, self.path, data)
                body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, folder: Path, namespace: str = "models") -> Path:
        file = folder / "kubeconfig"
        content = {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "contexts": [
                {
                    "name": "fake",
                    "context": {"cluster": "fake", "user": "me", "namespace": namespace},
                }
            ],
            "users": [{"name": "me", "user": {"token": TOKEN}}],
        }
        file.write_text(yaml.safe_dump(content))
        return file

    def failure(self, status: int, message: str, **details: object) -> dict[str, Any]:
        return {"kind": "Status", "code": status, "message": message, "details": details}

    def answer(self, method: str, target: str, data: bytes) -> tuple[int, Any]:
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path = url.path
        self.requests.append(f"{method} {path}")
        if path in self.refused and method == "PATCH":
            return self.refused[path]
        if method == "GET":
            return self._get(path)
        if method == "PATCH":
            return 200, self._apply(path, json.loads(data), dry="dryRun" in query)
        if self.objects.pop(path, None) is None:
            return 404, self.failure(404, f"{path} not found")
        return 200, self.failure(200, "gone")

    def _get(self, path: str) -> tuple[int, Any]:
        if path in KINDS:
            names = ("kind", "name", "namespaced")
            return 200, {"resources": [dict(zip(names, one, strict=True)) for one in KINDS[path]]}
        if path in self.objects:
            return 200, self.objects[path]
        if path.endswith("/log"):
            return 200, self.logs.get(path.removesuffix("/log"), "")
        plural = path.rpartition("/")[2]
        if plural in {"events", *(plural for kinds in KINDS.values() for _, plural, _ in kinds)}:
            under = f"{path}/" if "/namespaces/" in path else f"{path.rpartition('/')[0]}/"
            items = [
                found
                for place, found in self.objects.items()
                if place.startswith(under) and place.split("/")[-2] == plural
            ]
            return 200, {"items": items, "metadata": {}}
        return 404, self.failure(404, f"{path} not found")

    def _apply(self, path: str, manifest: dict[str, Any], *, dry: bool) -> dict[str, Any]:
        before = self.objects.get(path, {})
        known = before.get("metadata", {})
        kept = {
            "uid": f"uid-{path}",
            "resourceVersion": "0",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        metadata = {**kept, **known, **manifest["metadata"]}
        after = {**before, **manifest, "metadata": metadata}
        if after != before:
            self._version += 1
            after["metadata"] = {**metadata, "resourceVersion": str(self._version)}
        if not dry:
            self.objects[path] = after
        return after
