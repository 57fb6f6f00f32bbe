"""Metrics pages as servers and gateways write them, and an HTTP server for them on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from penstock_ops.top.exposition import Page, parse

LABELS = 'model_name="tiny",engine="0"'


def histogram(name: str, counts: Mapping[str, int]) -> str:
    """Lines of a histogram from the number of observations up to each bound."""
    lines = [f'{name}_bucket{{{LABELS},le="{bound}"}} {n}' for bound, n in counts.items()]
    return "\n".join([*lines, f"{name}_count{{{LABELS}}} {counts['+Inf']}"]) + "\n"


def server_text(
    prompt: float = 100,
    generated: float = 50,
    cached: float = 25,
    first: Mapping[str, int] | None = None,
    more: str = "",
    started: float = 1000,
) -> str:
    """A server's page: three requests run, one waits, half of the KV pool is in use."""
    times = first or {"0.1": 4, "0.5": 8, "+Inf": 8}
    gauges = "".join(
        f"vllm:{name}{{{LABELS}}} {value}\n"
        for name, value in (
            ("num_requests_running", 3),
            ("num_requests_waiting", 1),
            ("kv_cache_usage_perc", 0.5),
            ("prompt_tokens_total", prompt),
            ("prompt_tokens_cached_total", cached),
            ("generation_tokens_total", generated),
        )
    )
    start = f"process_start_time_seconds {started}\n"
    first_token = histogram("vllm:time_to_first_token_seconds", times)
    gap = histogram("vllm:inter_token_latency_seconds", times)
    return gauges + first_token + gap + start + more


def server_page(*values: Any, **named: Any) -> Page:
    return parse(server_text(*values, **named))


def gateway_text(*ready: float, address: str = "10.0.0.{}:8000") -> str:
    """A gateway's page; `ready`: 1 or 0 for each of its replicas."""
    lines = ["penstock:gateway_requests_open 2", 'penstock:gateway_queue_requests{pool="a"} 5']
    for number, value in enumerate(ready, 1):
        labels = f'{{version="1",pool="a",replica="{address.format(number)}"}}'
        lines.append(f"penstock:gateway_replica_ready{labels} {value}")
        lines.append(f"penstock:gateway_replica_running{labels} {number}")
    return "\n".join(lines) + "\n"


Response = tuple[int, str]


@dataclass
class FakeServer:
    """Answers GETs with `answers` by path: a status and a text, or a function that makes them.
    Other paths are 404. `seen` has the path and the Authorization header of each.
    """

    answers: dict[str, Response | Callable[[], Response]]
    seen: list[tuple[str, str | None]] = field(default_factory=list)

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.seen.append((self.path, self.headers["Authorization"]))
                found = fake.answers.get(self.path, (404, ""))
                status, text = found() if callable(found) else found
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_arguments: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def counting() -> Callable[[], Response]:
    """A server's page whose counters grow with each reading."""
    lock, reads = threading.Lock(), [0]

    def page() -> Response:
        with lock:
            reads[0] += 1
            n = reads[0]
        times = {"0.1": 4 * n, "0.5": 8 * n, "+Inf": 8 * n}
        return 200, server_text(100 * n, 50 * n, 25 * n, times)

    return page


def document(*replicas: Mapping[str, Any], time: float = 1000.0) -> str:
    """The JSON of `GET /replicas` with one pool."""
    pools = [{"name": "a", "saturated": False, "queued": 0, "replicas": list(replicas)}]
    return json.dumps({"version": "1", "time": time, "pools": pools, "picks": []})
