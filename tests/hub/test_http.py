"""Proxies and TLS between this machine and a hub."""

from __future__ import annotations

import io
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.config import HubSettings, hub_settings
from penstock.hub import names, repository
from penstock.hub.errors import HubError, UnreachableError
from penstock.hub.http import is_direct
from penstock.hub.names import HubName
from penstock.hub.progress import Progress
from penstock.hub.repository import Fetched
from tests.fakes.certificate import Certificate
from tests.fakes.hub import FakeHub, fake_hub
from tests.hub.conftest import CONTENT

NAME = HubName("org/m-GGUF", "Q4_0")
FILES = {"m-Q4_0.gguf": CONTENT, "README.md": b"#"}


def pull(settings: HubSettings) -> Fetched:
    return repository.fetch(NAME, None, settings, names.select, Progress("m", io.StringIO()))


def refused(settings: HubSettings) -> str:
    with pytest.raises(HubError) as error:
        pull(settings)
    return str(error.value)


class Proxy(BaseHTTPRequestHandler):
    """A proxy that refuses plain requests, and opens tunnels to loopback."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Proxy-Authorization")))
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_CONNECT(self) -> None:
        self.asked.append((f"CONNECT {self.path}", self.headers.get("Proxy-Authorization")))
        host, _, port = self.path.partition(":")
        if host != "localhost":
            self.send_error(502)
            return
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            self._carry(there)
        self.close_connection = True

    def _carry(self, there: socket.socket) -> None:
        other = {self.connection: there, there: self.connection}
        while True:
            for ready in select.select(list(other), [], [])[0]:
                data = ready.recv(1 << 16)
                if not data:
                    return
                other[ready].sendall(data)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def proxy() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The address of a proxy, with a password, and what it was asked."""
    handler = type("Handler", (Proxy,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield f"http://me:pa%20ss@127.0.0.1:{server.server_port}", handler.asked
        finally:
            server.shutdown()


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    made = Certificate(tmp_path)
    made.write(7)
    return made


@pytest.fixture
def secure(certificate: Certificate, tmp_path: Path) -> Iterator[tuple[FakeHub, HubSettings]]:
    """A hub with TLS, and settings that trust its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    with fake_hub(context) as hub:
        hub.add(NAME.repository, FILES)
        environ = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub")}
        yield hub, hub_settings({**environ, "REQUESTS_CA_BUNDLE": str(certificate.chain)})


def test_tls(secure: tuple[FakeHub, HubSettings]) -> None:
    hub, settings = secure
    assert pull(settings).path.read_bytes() == CONTENT
    assert hub.url.startswith("https:")


def test_a_certificate_that_is_not_trusted(secure: tuple[FakeHub, HubSettings]) -> None:
    _, settings = secure
    said = refused(replace(settings, certificates=None))
    assert "the certificate is not trusted (self-signed certificate" in said
    assert "REQUESTS_CA_BUNDLE" in said


def test_certificates_that_are_none(secure: tuple[FakeHub, HubSettings], tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("none")
    for file in ("bad.pem", "missing.pem"):
        said = refused(replace(secure[1], certificates=str(tmp_path / file)))
        assert said.startswith(f"REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE: {tmp_path / file}: ")


def test_tls_through_a_proxy(secure: tuple[FakeHub, HubSettings]) -> None:
    hub, settings = secure
    with proxy() as (where, asked):
        found = pull(replace(settings, proxies={"https": where}))
    assert found.path.read_bytes() == CONTENT
    assert {path for path, _ in asked} == {
        f"CONNECT localhost:{urlsplit(url).port}" for url in (hub.url, hub.cdn)
    }
    assert {authorization for _, authorization in asked} == {"Basic bWU6cGEgc3M="}
    assert not any("Proxy-Authorization" in one.headers for one in hub.asked)


def test_a_redirect_from_tls_to_none(secure: tuple[FakeHub, HubSettings]) -> None:
    hub, settings = secure
    hub.fault("hub:.*/resolve/", headers={"Location": hub.cdn.replace("https:", "http:")})
    assert "which is not encrypted" in refused(settings)


@pytest.mark.parametrize(
    ("endpoint", "asked_for"),
    [
        ("http://hub.example", "http://hub.example/api/models/org/m-GGUF/revision/main"),
        ("https://hub.example", "CONNECT hub.example:443"),
    ],
)
def test_a_proxy_that_refuses(endpoint: str, asked_for: str, tmp_path: Path) -> None:
    with proxy() as (where, asked):
        environ = {
            "HF_ENDPOINT": endpoint,
            "HF_HUB_CACHE": str(tmp_path),
            "http_proxy": where,
            "HTTPS_PROXY": where,
            "NO_PROXY": "other.example,localhost",
        }
        said = refused(hub_settings(environ))
    assert asked[0] == (asked_for, "Basic bWU6cGEgc3M=")
    assert "pa%20ss" not in said
    assert ("no such repository" in said) == endpoint.startswith("http:")


def test_a_host_without_a_proxy(hub: FakeHub, settings: HubSettings) -> None:
    hub.add(NAME.repository, FILES)
    proxied = replace(settings, proxies={"http": "127.0.0.1:9"})
    with pytest.raises(UnreachableError):
        pull(proxied)
    pull(replace(proxied, no_proxy=("127.0.0.1", ".localhost", "localhost")))


def test_a_proxy_of_another_kind(settings: HubSettings) -> None:
    wrong = replace(settings, proxies={"http": "socks5://me:secret@127.0.0.1:1"})
    with pytest.raises(HubError) as error:
        pull(wrong)
    assert str(error.value).startswith("HTTP_PROXY: a proxy of kind 'socks5' is not supported")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("entries", "direct"),
    [
        (("hub.example",), True),
        (("example",), True),
        ((".example",), True),
        (("*.example",), True),
        (("hub.example:8443",), True),
        (("hub.example:443",), False),
        (("ub.example",), False),
        (("",), False),
        (("*",), True),
        ((), False),
    ],
)
def test_hosts_of_no_proxy(entries: tuple[str, ...], direct: bool) -> None:
    assert is_direct(urlsplit("https://hub.example:8443/x"), entries) == direct


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".example", "-"])
def test_hosts_that_can_have_no_address(settings: HubSettings, host: str) -> None:
    with pytest.raises(UnreachableError):
        pull(replace(settings, endpoint=f"http://{host}"))


def test_a_proxy_without_a_port(settings: HubSettings) -> None:
    assert refused(replace(settings, proxies={"http": "http://h:x"})).startswith("HTTP_PROXY: its")
