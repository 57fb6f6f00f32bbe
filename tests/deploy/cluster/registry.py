"""A registry that has no image, and one that shows its images to no one."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

PRIVATE = "private"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        private = f"/{PRIVATE}/" in self.path
        status = 200 if self.path == "/v2/" else 403 if private else 404
        code = "DENIED" if private else "MANIFEST_UNKNOWN"
        body = json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Registry:
    """Answers at an address of this machine until the block ends."""

    def __init__(self, address: str) -> None:
        self._server = ThreadingHTTPServer((address, 0), _Handler)
        self.name = f"{address}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
