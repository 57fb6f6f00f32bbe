"""Features in pairs: each pair is started and asked one question, whose answer is known.

Alone each feature has tests of its own. Together they share listeners, keys, flags and places.
"""

from __future__ import annotations

import http.client
import itertools
import json
import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from penstock.config.machine import free_port
from tests.e2e.conftest import Serve
from tests.e2e.gateway import Gateway
from tests.e2e.server import eventually
from tests.e2e.test_operating import Certificate
from tests.e2e.test_tiny import write_tokenizer
from tests.limits import HANG

FEATURES = ("keys", "tls", "replicas", "gateway", "tier", "metrics", "path", "ipv6", "blocks")
REFUSED = {frozenset(("replicas", "metrics")): "--replicas is 2, expected 1, with --metrics-port"}
"""Pairs that do not go together, and what the command says."""
PREFIX = "/models/one"
KEY, INNER = "a client's", "a gateway's"


@pytest.fixture(scope="module")
def checkpoint(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pairs") / "llama"
    shutil.copytree(repository / "tests/fixtures/tiny/llama", directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    made = Certificate(tmp_path_factory.mktemp("certificate"))
    made.write(1)
    return made


@contextmanager
def below_a_path(url: str) -> Iterator[str]:
    """A proxy that serves `url` below a path, as an Ingress does."""
    target = urlsplit(url)
    assert target.hostname

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def log_message(self, *_: object) -> None:
            pass

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith(PREFIX):
                self.send_error(404)
                return
            if target.scheme == "https":
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                inner: http.client.HTTPConnection = http.client.HTTPSConnection(
                    target.hostname or "", target.port, context=context, timeout=HANG
                )
            else:
                inner = http.client.HTTPConnection(target.hostname or "", target.port, timeout=HANG)
            headers = {
                name: value for name, value in self.headers.items() if name.lower() != "host"
            }
            inner.request(self.command, self.path.removeprefix(PREFIX), body, headers)
            answer = inner.getresponse()
            whole = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.getheader("content-type") or "text/plain")
            self.send_header("content-length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)
            inner.close()

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}{PREFIX}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


def front_flags(pair: frozenset[str], certificate: Certificate, keys: Path) -> list[str]:
    """Flags of what clients reach, which a server and a gateway both have."""
    flags = []
    if "keys" in pair:
        keys.write_text(json.dumps({"keys": [{"name": "client", "key": KEY.replace(" ", "-")}]}))
        flags += ["--api-key-file", str(keys)]
    if "tls" in pair:
        flags += ["--ssl-certfile", str(certificate.chain), "--ssl-keyfile", str(certificate.key)]
    if "ipv6" in pair:
        flags += ["--host", "::1"]
    return flags


def own_flags(pair: frozenset[str], metrics_port: int) -> list[str]:
    """Flags of the server alone."""
    flags = ["--dtype", "float32", "--kv-cache-memory-bytes", "16MiB"]
    if "replicas" in pair:
        flags += ["--replicas", "2"]
    if "tier" in pair:
        flags += ["--kv-tier", "ram:16MiB"]
    if "metrics" in pair:
        flags += ["--metrics-port", str(metrics_port)]
    if "blocks" in pair:
        flags += ["--block-size", "64"]
    return flags


@pytest.mark.parametrize("pair", list(itertools.combinations(FEATURES, 2)), ids="-".join)
def test_a_pair_of_features_answers(
    pair: tuple[str, str],
    serve: Serve,
    checkpoint: Path,
    certificate: Certificate,
    tmp_path: Path,
) -> None:
    both, port = frozenset(pair), free_port()
    front, own = front_flags(both, certificate, tmp_path / "keys.json"), own_flags(both, port)
    if both in REFUSED:
        refused = serve(*own, *front, model=checkpoint)
        assert refused.wait() == 2
        assert REFUSED[both] in refused.text()
        return
    with ExitStack() as stack:
        if "gateway" not in both:
            server = stack.enter_context(serve(*own, *front, model=checkpoint))
            url = server.url
            if "path" in both:
                url = stack.enter_context(below_a_path(url))
        else:
            inner = INNER.replace(" ", "-")
            own += ["--api-key", inner] if "keys" in both else []
            own += ["--host", "::1"] if "ipv6" in both else []
            server = stack.enter_context(serve(*own, model=checkpoint))
            backend = server.url
            if "path" in both:
                backend = stack.enter_context(below_a_path(backend))
            words = ["--backend", backend, *front]
            words += ["--backend-api-key", inner] if "keys" in both else []
            url = stack.enter_context(Gateway(*words)).url
        ask(both, url, checkpoint)
        if "metrics" in both:
            own = "[::1]" if "ipv6" in both else "127.0.0.1"
            page = httpx.get(f"http://{own}:{port}/metrics", timeout=HANG)
            assert page.status_code == 200
            assert "vllm:num_requests_running" in page.text


def ask(pair: frozenset[str], url: str, checkpoint: Path) -> None:
    """The models are listed and a prompt has the answer that transformers gave, for those alone who
    have a key.
    """
    reference = json.loads((checkpoint / "reference.json").read_text())
    count = len(reference["greedy"])
    body = {
        "model": "llama",
        "prompt": reference["tokens"],
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    # The certificate is of localhost; what it is checked against has tests of its own.
    with httpx.Client(verify=False, timeout=HANG) as client:
        if "keys" in pair:
            assert client.get(f"{url}/v1/models").status_code == 401
            assert client.post(f"{url}/v1/completions", json=body).status_code == 401
            client.headers["authorization"] = f"Bearer {KEY.replace(' ', '-')}"

        def listed() -> list[str]:
            return [card["id"] for card in client.get(f"{url}/v1/models").json()["data"]]

        assert eventually(listed, "a list of models") == ["llama"]
        for stream in (False, True):
            answer = client.post(f"{url}/v1/completions", json={**body, "stream": stream})
            assert answer.status_code == 200, answer.text
            events = (
                [answer.json()]
                if not stream
                else [
                    json.loads(line.removeprefix("data: "))
                    for line in answer.text.splitlines()
                    if line.startswith("data: {")
                ]
            )
            ids = [choice["token_ids"] for event in events for choice in event["choices"]]
            assert list(itertools.chain.from_iterable(ids)) == reference["greedy"]
