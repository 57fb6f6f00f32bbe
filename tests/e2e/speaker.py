"""A server that says what a test wants, behind the page of a real one."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import httpx

from tests.limits import HANG

COPIED = ("content-type", "content-security-policy", "x-content-type-options")


@dataclass
class Speaker:
    """Serves the page of the server at `page`, with its headers. Chats are answered with a stream
    of `deltas`; `asked` keeps their bodies. `texts` has the answers of other paths.
    """

    page: str
    models: list[str]
    deltas: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        speaker = self

        class Handler(_Handler):
            server_of_test = speaker

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_of_test: Speaker

    def do_GET(self) -> None:
        speaker = self.server_of_test
        if self.path == "/v1/models":
            data = [{"id": name, "object": "model"} for name in speaker.models]
            self._send(200, {"content-type": "application/json"}, json.dumps({"data": data}))
        elif self.path in speaker.texts:
            self._send(200, {"content-type": "text/plain"}, speaker.texts[self.path])
        elif self.path == "/" or self.path.startswith("/page/"):
            accept = {"accept": self.headers.get("accept", "")}
            found = httpx.get(speaker.page + self.path, headers=accept, timeout=HANG)
            headers = {name: found.headers[name] for name in COPIED if name in found.headers}
            self._send(found.status_code, headers, found.text)
        else:
            self._send(404, {"content-type": "application/json"}, "{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server_of_test.asked.append(json.loads(body))
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta}]} for delta in self.server_of_test.deltas
        ]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        self._send(200, {"content-type": "text/event-stream"}, f"{events}data: [DONE]\n\n")

    def _send(self, status: int, headers: dict[str, str], text: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing: the test says what matters."""
