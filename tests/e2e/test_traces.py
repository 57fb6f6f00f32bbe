"""One trace from a client through a gateway to the engine of a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT = "b7ad6b7169203331"

Span = dict[str, Any]


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """An endpoint of OTLP over HTTP, and the spans that it has got, each with its service."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            for resource in body["resourceSpans"]:
                service = attributes(resource["resource"])["service.name"]
                for scope in resource["scopeSpans"]:
                    spans.extend({**span, "service": service} for span in scope["spans"])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in of["attributes"]}


def test_a_gateway_and_a_server_export_one_trace(serve: Serve) -> None:
    with collector() as (url, spans):
        flags = ("--otlp-traces-endpoint", url)
        with (
            serve("--served-model-name", "smollm2", *flags) as server,
            Gateway("--backend", server.url, *flags) as gateway,
            gateway.client(traceparent=f"00-{TRACE}-{CLIENT}-01") as client,
        ):
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 4,
                "ignore_eos": True,
                "temperature": 0,
            }
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
    # Both have ended, and have flushed what they had.
    assert {span["traceId"] for span in spans} == {TRACE}
    path = "POST /v1/chat/completions"
    found = {(span["service"], span["name"]): span for span in spans}
    chain = [
        ("penstock-gateway", path),
        ("penstock-gateway", "attempt"),
        ("penstock", path),
        ("penstock", "chat smollm2"),
    ]
    parents = [CLIENT, *(found[name]["spanId"] for name in chain)]
    for name, parent in zip(chain, parents, strict=False):
        assert found[name]["parentSpanId"] == parent, name
    phases = [("penstock", name) for name in ("queue", "prefill", "decode")]
    for name in phases:
        assert found[name]["parentSpanId"] == parents[-1], name
    assert found.keys() == {*chain, *phases}
    assert len(spans) == len(found)
    usage = answer.json()["usage"]
    chat = attributes(found[chain[-1]])
    assert int(chat["gen_ai.usage.input_tokens"]) == usage["prompt_tokens"]
    assert int(chat["gen_ai.usage.output_tokens"]) == usage["completion_tokens"] == 4
    assert chat["gen_ai.request.model"] == "smollm2"
    request_id = answer.headers["x-request-id"]
    for name in (chain[0], chain[2]):
        assert attributes(found[name])["gen_ai.request.id"] == request_id
    keys = ("startTimeUnixNano", "endTimeUnixNano")
    bounds = [int(found[name][key]) for name in phases for key in keys]
    assert bounds == sorted(bounds)
