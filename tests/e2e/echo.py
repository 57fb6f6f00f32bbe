"""A replica that keeps what it is sent, and answers with it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

FULL = """\
vllm:num_requests_waiting{engine="0"} 9
vllm:num_requests_running{engine="0"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.9
"""
"""Metrics of a replica without room for another request."""


@dataclass
class Seen:
    path: str
    headers: Message
    body: bytes


@dataclass
class Echo:
    """An OpenAI-compatible server of the models `models`, as far as a gateway looks. Requests are
    answered with `status`, the size of their body and the model that they ask for; 0 ends the
    connection instead. `metrics` is its page of metrics; without one there is none. Answers are
    chunked and have `trailers` behind them where there are any; with `breaks` the connection is
    reset in their middle.
    """

    models: tuple[str, ...] = ("echo",)
    status: int = 200
    is_healthy: bool = True
    metrics: str = ""
    trailers: dict[str, str] = field(default_factory=dict)
    breaks: bool = False
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> Self:
        echo = self

        class Handler(_Handler):
            replica = echo

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
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes
    replica: Echo

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            data = [{"id": name, "object": "model"} for name in self.replica.models]
            self._answer(200, {"object": "list", "data": data})
        elif self.path == "/metrics" and self.replica.metrics:
            self._send(200, "text/plain", self.replica.metrics.encode())
        else:
            healthy = 200 if self.replica.is_healthy else 503
            self._answer(healthy if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = self._chunks() if "transfer-encoding" in self.headers else self._length()
        self.replica.seen.append(Seen(self.path, self.headers, body))
        if self.replica.status == 0:
            self.close_connection = True
            return
        model = json.loads(body).get("model")
        answer = {"model": model, "bytes": len(body)}
        if self.replica.trailers or self.replica.breaks:
            self._chunked(json.dumps(answer).encode())
        else:
            self._answer(self.replica.status, answer)

    def _length(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(parts)

    def _answer(self, status: int, body: object) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _chunked(self, text: bytes) -> None:
        self.send_response(self.replica.status)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if self.replica.breaks:
                self._reset()
                return
        trailers = "".join(f"{name}: {value}\r\n" for name, value in self.replica.trailers.items())
        self.wfile.write(b"0\r\n" + trailers.encode() + b"\r\n")

    def _reset(self) -> None:
        """End the connection with RST, once its peer has had time to read what was sent."""
        self.close_connection = True
        time.sleep(0.2)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _send(self, status: int, kind: str, text: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing: the test says what matters."""
