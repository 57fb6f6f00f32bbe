"""Lists and watches of a Kubernetes API server, and no more than a gateway asks of it. The real one
is in tests/kubernetes.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

Object = dict[str, Any]

PODS = "/api/v1/namespaces/models/pods"
EXPERIMENTAL = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/models"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
OBJECTIVES = f"{EXPERIMENTAL}/inferenceobjectives"
REWRITES = f"{EXPERIMENTAL}/inferencemodelrewrites"
TOKEN = "a token"


def pod(address: str, ready: bool = True, **metadata: object) -> Object:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": metadata, "status": {"podIP": address, "conditions": conditions}}


class ApiServer:
    """One that serves until the end of the block."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 1
        self._objects: dict[str, dict[str, Object]] = {
            path: {} for path in (PODS, POOLS, OBJECTIVES, REWRITES)
        }
        self._events: list[tuple[int, str, str, Object]] = []
        self._open = True
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all watches, and is away from then on."""
        if not self._open:
            return
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, path: str, name: str, content: Object) -> None:
        with self._changed:
            self._version += 1
            kind = "MODIFIED" if name in self._objects[path] else "ADDED"
            metadata = {"name": name, "namespace": "models", **content.get("metadata", {})}
            found = {**content, "metadata": {**metadata, "resourceVersion": str(self._version)}}
            self._objects[path][name] = found
            self._tell(path, kind, found)

    def delete(self, path: str, name: str) -> None:
        with self._changed:
            self._version += 1
            found = self._objects[path].pop(name)
            found["metadata"]["resourceVersion"] = str(self._version)
            self._tell(path, "DELETED", found)

    def _tell(self, path: str, kind: str, content: Object) -> None:
        self._events.append((self._version, path, kind, content))
        self._changed.notify_all()

    def kubeconfig(self, folder: Path) -> Path:
        (folder / "token").write_text(TOKEN)
        host, port = self._server.server_address[:2]
        cluster = {"server": f"http://{host!s}:{port}"}
        content = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(content))
        return file

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = parse_qs(url.query)
        status = 200 if url.path in self._objects else 404
        if handler.headers["authorization"] != f"Bearer {TOKEN}":
            status = 401
        handler.send_response(status)
        handler.end_headers()
        if status == 200 and "watch" in query:
            self._watch(handler, url.path, int(query["resourceVersion"][0]))
        elif status == 200:
            with self._changed:
                items = list(self._objects[url.path].values())
                version = {"resourceVersion": str(self._version)}
            handler.wfile.write(json.dumps({"metadata": version, "items": items}).encode())

    def _watch(self, handler: BaseHTTPRequestHandler, path: str, version: int) -> None:
        while True:
            with self._changed:
                new = [one for one in self._events if one[0] > version and one[1] == path]
                if not new and self._open:
                    self._changed.wait()
                if not self._open:
                    return
            for _, _, kind, content in new:
                line = json.dumps({"type": kind, "object": content})
                try:
                    handler.wfile.write(f"{line}\n".encode())
                except OSError:
                    return
            version = new[-1][0] if new else version
