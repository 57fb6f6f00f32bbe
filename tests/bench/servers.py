"""Small HTTP servers for what the benchmark asks besides load: lists of models, health."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Handle = Callable[[str, Mapping[str, str]], tuple[int, object]]
"""Path and headers (names in lower case) to status and body: JSON, or text as it is."""


@contextmanager
def serving(handle: Handle) -> Iterator[str]:
    """The address of a server that answers GET and POST by `handle`, for as long as the block
    lasts.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = handle(
                self.path, {name.lower(): value for name, value in self.headers.items()}
            )
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def models(*entries: Mapping[str, object]) -> dict[str, object]:
    """The body of /v1/models."""
    return {"object": "list", "data": list(entries)}


@contextmanager
def serving_model(**entry: object) -> Iterator[str]:
    """A server of the model `m` that tells nothing but what it is."""
    listed = models({"id": "m", **entry})
    with serving(lambda path, _: (200, listed if path == "/v1/models" else {})) as url:
        yield url
