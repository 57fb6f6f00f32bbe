"""A model hub on loopback, with a second server that its files are redirected to, and faults that
tests order.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.limits import HANG

LFS = 1 << 10
"""Files of this size and more are LFS files, which the second server has."""


@cache
def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class RecordedRequest:
    """A request that arrived."""

    server: str
    """`hub` or `cdn`."""
    path: str
    headers: Mapping[str, str]


@dataclass
class Fault:
    """What happens to the next `times` requests whose server and path match."""

    where: str
    """Regular expression for `hub:/PATH` or `cdn:/PATH`."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    """Bytes of the body after which the connection is closed."""
    ranges: bool = True
    """Whether Range is respected."""
    change: Callable[[bytes], bytes] = bytes
    """What becomes of the file."""
    length: int | None = None
    """Size that the headers claim."""
    times: int = 1


class FakeHub:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "https" if tls else "http"
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        """Repository, commit, name: content."""
        self.branches: dict[tuple[str, str], str] = {}
        self.faults: list[Fault] = []
        self.asked: list[RecordedRequest] = []
        self.page = 1000
        self.linked = True
        """Whether redirects tell size and hash of what they lead to."""
        self.token: str | None = None
        """Token that the hub demands."""
        self.listing: Callable[[list[dict[str, object]]], object] = list
        """What becomes of a page of a listing."""
        self.gate: threading.Event | None = None
        """Bodies of files wait for it after their first bytes."""
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}
        for name, host in (("hub", "127.0.0.1"), ("cdn", "localhost")):
            handler = type("Handler", (_Handler,), {"hub": self, "side": name})
            self._servers[name] = server = _Server((host, 0), handler)
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=self._servers[name].serve_forever, args=(0.05,))
            thread.start()

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._scheme == "http" else "localhost"
        return f"{self._scheme}://{host}:{self._servers['hub'].server_port}"

    @property
    def cdn(self) -> str:
        return f"{self._scheme}://localhost:{self._servers['cdn'].server_port}"

    def close(self) -> None:
        if self.gate is not None:
            self.gate.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def add(self, repository: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add a commit; returns its hash."""
        told = json.dumps({name: blob_sha1(content) for name, content in files.items()})
        commit = hashlib.sha1(told.encode()).hexdigest()
        self.repositories.setdefault(repository, {})[commit] = dict(files)
        self.branches[repository, branch] = commit
        return commit

    def fault(self, where: str, **how: object) -> Fault:
        made = Fault(where, **how)  # type: ignore[arg-type]
        self.faults.append(made)
        return made

    def take_fault(self, where: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.where, where):
                    fault.times -= 1
                    return fault
        return None

    def note(self, asked: RecordedRequest) -> None:
        with self._lock:
            self.asked.append(asked)

    def files_asked(self) -> list[str]:
        """Paths of requests for files."""
        return [one.path for one in self.asked if "/resolve/" in one.path or one.server == "cdn"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that are gone are no news."""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    side: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.note(RecordedRequest(self.side, self.path, dict(self.headers)))
        fault = self.hub.take_fault(f"{self.side}:{path}")
        if fault is not None and fault.status is not None:
            self._send(fault.status, fault.body, fault.headers, fault)
        elif self.side == "cdn":
            self._cdn(path, fault)
        elif self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"))
        else:
            self._resolve(path, fault)

    do_HEAD = do_GET  # noqa: N815

    def _cdn(self, path: str, fault: Fault | None) -> None:
        wanted = path.rpartition("/")[2]
        for commits in self.hub.repositories.values():
            for files in commits.values():
                for content in files.values():
                    if sha256_of(content) == wanted:
                        self._file(content, {"ETag": f'"{wanted[:32]}"'}, fault)
                        return
        self._send(404, b"", {})

    def _api(self, rest: str) -> None:
        org, name, kind, said = rest.split("/", 3)
        commit = self._commit(f"{org}/{name}", said)
        if commit is None:
            return
        if kind == "revision":
            about = {"id": f"{org}/{name}", "sha": commit, "siblings": []}
            self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
            return
        entries = [
            _entry(each, content)
            for each, content in self.hub.repositories[f"{org}/{name}"][commit].items()
        ]
        query = parse_qs(urlsplit(self.path).query)
        at = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if at + self.hub.page < len(entries):
            following = f"{self.hub.url}{urlsplit(self.path).path}?recursive=true&cursor="
            headers["Link"] = f'<{following}{at + self.hub.page}>; rel="next"'
        page = self.hub.listing(entries[at : at + self.hub.page])
        self._send(200, json.dumps(page).encode(), headers)

    def _resolve(self, path: str, fault: Fault | None) -> None:
        org, name, _, said, file = path.lstrip("/").split("/", 4)
        commit = self._commit(f"{org}/{name}", said)
        if commit is None:
            return
        content = self.hub.repositories[f"{org}/{name}"][commit].get(file)
        if content is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        if len(content) < LFS:
            headers = {"ETag": f'"{blob_sha1(content)}"', "X-Repo-Commit": commit}
            self._file(content, headers, fault)
            return
        etag = sha256_of(content)
        location = f"{self.hub.cdn}/store/{etag}?signature={quote(commit)}"
        headers = {"X-Repo-Commit": commit, "Location": location}
        if self.hub.linked:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        self._send(302, b"Found. Redirecting", {**headers, **(fault.headers if fault else {})})

    def _commit(self, repository: str, said: str) -> str | None:
        if repository not in self.hub.repositories:
            self._refuse(404, "RepoNotFound", "Repository not found")
            return None
        commit = self.hub.branches.get((repository, said), said)
        if commit not in self.hub.repositories[repository]:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {said}")
            return None
        return commit

    def _refuse(self, status: int, code: str, text: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": text})

    def _file(self, content: bytes, headers: Mapping[str, str], fault: Fault | None) -> None:
        fault = fault or Fault("")
        content = fault.change(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        total = fault.length if fault.length is not None else len(content)
        if asked is None or not fault.ranges:
            self._send(200, content, headers, fault)
            return
        start = int(asked[1])
        stop = min(int(asked[2]) + 1 if asked[2] else len(content), len(content))
        if start >= len(content):
            self._send(416, b"", {"Content-Range": f"bytes */{total}"})
            return
        about = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{total}"}
        self._send(206, content[start:stop], about, fault)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault | None = None
    ) -> None:
        length = len(body)
        if fault is not None and fault.length is not None and status == 200:
            length = fault.length
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is not None and fault.cut is not None:
            self.wfile.write(body[: fault.cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        try:
            self._write(body, status)
        except OSError:
            self.close_connection = True

    def _write(self, body: bytes, status: int) -> None:
        if self.hub.gate is not None and status in (200, 206) and len(body) >= LFS:
            self.wfile.write(body[:LFS])
            self.wfile.flush()
            self.hub.gate.wait(HANG)
            body = body[LFS:]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": blob_sha1(content),
    }
    if len(content) >= LFS:
        sha256 = sha256_of(content)
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
    return entry


@contextmanager
def fake_hub(tls: ssl.SSLContext | None = None) -> Iterator[FakeHub]:
    hub = FakeHub(tls)
    try:
        yield hub
    finally:
        hub.close()
