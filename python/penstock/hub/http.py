"""HTTP requests to a hub and to the servers it redirects to: proxies, redirects, persistent
connections and retries.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from penstock import __version__
from penstock.config import HubSettings
from penstock.hub.errors import HubError, UnreachableError, address, shown

MOST_REDIRECTS = 10
ATTEMPTS = 5
"""Consecutive attempts without any new bytes after which a download fails."""
PAUSE = 0.5
"""Seconds before the first retry. Each further pause is twice as long."""
LONG_WAIT = 2.0
"""Waits of at least this many seconds are reported to the user."""
LONGEST_WAIT = 120.0
"""Maximum Retry-After in seconds that is waited for. A longer one is an error."""
BUSY = {408, 425, 429, 500, 502, 503, 504}
"""Status codes after which a request is retried."""
REDIRECTS = {301, 302, 303, 307, 308}
LOST = (OSError, http.client.HTTPException, UnicodeError)
"""Exceptions of a connection that fails or breaks. UnicodeError is raised for invalid host
names.
"""


@dataclass(slots=True)
class Answer:
    """The response to a request, after redirects. `close` it, or use it as a context."""

    status: int
    headers: Mapping[str, str]
    url: str
    """URL that sent the response."""
    linked: Mapping[str, str]
    """Headers of the hub's own response, which may have been a redirect."""
    body: http.client.HTTPResponse
    give_back: Callable[[], None]

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.give_back()


class Session:
    """Connections of one download. Thread-safe. `tell` receives a sentence before a long wait;
    `pause` waits for a number of seconds, and returns true if the download was cancelled meanwhile.
    """

    def __init__(
        self,
        settings: HubSettings,
        tell: Callable[[str], None],
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self.settings = settings
        self._tell = tell
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._own = _origin(urlsplit(settings.endpoint))
        self._idle: dict[tuple[str, str, int], list[http.client.HTTPConnection]] = {}
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def abort(self) -> None:
        """End all requests, including those that other threads wait for."""
        self._stop.set()
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    @property
    def aborted(self) -> bool:
        return self._stop.is_set()

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request. Follows redirects, but sends the token only to the hub's own address.
        Raises LOST if there is no response, and HubError for a redirect that is not followed.
        """
        linked: Mapping[str, str] | None = None
        for _ in range(MOST_REDIRECTS):
            answer = self._request(url, headers or {})
            linked = answer.headers if linked is None else linked
            target = answer.headers.get("location")
            if answer.status not in REDIRECTS or target is None:
                answer.linked = linked
                return answer
            with contextlib.suppress(*LOST):
                answer.body.read(1 << 16)
            answer.close()
            url = _redirected(url, target)
        raise HubError(f"{address(url)}: more than {MOST_REDIRECTS} redirects")

    def retried(self, label: str, url: str) -> Answer:
        """Like `get`, with up to ATTEMPTS attempts if the connection fails or the server is busy.
        Raises UnreachableError, whose text begins with `label`, if all attempts fail.
        """
        for attempt in range(ATTEMPTS):
            try:
                answer = self.get(url)
            except LOST as error:
                self.wait(attempt, None, f"{label}: {address(url)}: {cause(error)}")
                continue
            if answer.status not in BUSY:
                return answer
            answer.close()
            failure = f"{label}: {address(url)}: {busy(answer.status)}"
            self.wait(attempt, answer.headers.get("retry-after"), failure)
        raise AssertionError("wait ends the last attempt")

    def wait(self, attempt: int, retry_after: str | None, failure: str) -> None:
        """Wait after failed attempt number `attempt` (from 0). Raises UnreachableError if it was
        the last attempt, or if the server demands a longer wait than LONGEST_WAIT.
        """
        if self.aborted:
            raise UnreachableError(f"{failure}; the download was stopped")
        seconds = _seconds(retry_after)
        if seconds is not None and seconds > LONGEST_WAIT:
            raise UnreachableError(
                f"{failure}: the server takes requests again in {seconds:.0f} s; try again then"
                f"{self._token_hint()}"
            )
        if attempt + 1 >= ATTEMPTS:
            raise UnreachableError(
                f"{failure} ({ATTEMPTS} attempts); check the network and the proxy, for a model of "
                "the hub HF_ENDPOINT too, then try again"
            )
        if seconds is None:
            seconds = PAUSE * 2**attempt * random.uniform(0.75, 1.25)
        if seconds >= LONG_WAIT:
            self._tell(f"{failure}; the next attempt is in {seconds:.0f} s")
        if self._pause(seconds):
            raise UnreachableError(f"{failure}; the download was stopped")

    def _token_hint(self) -> str:
        return "" if self.settings.token else ", or set HF_TOKEN, which raises the limit"

    def _request(self, url: str, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(url)
        origin = _origin(parts)
        sent = {
            "Host": parts.netloc.rpartition("@")[2],
            "User-Agent": f"penstock/{__version__}",
            "Accept-Encoding": "identity",
            **headers,
        }
        if self.settings.token and origin == self._own:
            sent["Authorization"] = f"Bearer {self.settings.token}"
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
        target += f"?{quote(parts.query, safe='/%:@!$&()*+,;=~?-._')}" if parts.query else ""
        proxy = self._proxy(parts)
        if proxy is not None and parts.scheme == "http":
            target = f"http://{sent['Host']}{target}"
            sent |= _proxy_authorization(proxy)
        kept = self._take(origin)
        if kept is not None:
            try:
                return self._send(kept, origin, url, target, sent)
            except LOST:
                # The server may have closed the idle connection.
                self._drop(kept)
        fresh = self._connect(parts, proxy)
        try:
            return self._send(fresh, origin, url, target, sent)
        except BaseException:
            self._drop(fresh)
            raise

    def _send(
        self,
        connection: http.client.HTTPConnection,
        origin: tuple[str, str, int],
        url: str,
        target: str,
        headers: Mapping[str, str],
    ) -> Answer:
        if self.aborted:
            raise ConnectionAbortedError("the download was stopped")
        connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        body = connection.getresponse()
        named = {name.lower(): value for name, value in body.getheaders()}

        def give_back() -> None:
            if body.isclosed() and not body.will_close:
                with self._lock:
                    self._idle.setdefault(origin, []).append(connection)
            else:
                self._drop(connection)

        return Answer(body.status, named, url, named, body, give_back)

    def _take(self, origin: tuple[str, str, int]) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._idle.get(origin)
            return idle.pop() if idle else None

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _connect(self, parts: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
        scheme, host, port = _origin(parts)
        to_host, to_port = (host, port) if proxy is None else _origin(proxy)[1:]
        timeout = self.settings.timeout
        if scheme == "https":
            secure = http.client.HTTPSConnection(
                to_host, to_port, timeout=timeout, context=self._context()
            )
            if proxy is not None:
                secure.set_tunnel(host, port, headers=_proxy_authorization(proxy))
            connection: http.client.HTTPConnection = secure
        else:
            connection = http.client.HTTPConnection(to_host, to_port, timeout=timeout)
        with self._lock:
            self._open.add(connection)
        return connection

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                file = self.settings.certificates
                try:
                    self._tls = ssl.create_default_context(cafile=file)
                except (OSError, ssl.SSLError) as error:
                    raise HubError(
                        f"REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE: {shown(file)}: {cause(error)}"
                    ) from error
            return self._tls

    def _proxy(self, parts: SplitResult) -> SplitResult | None:
        configured = self.settings.proxies.get(parts.scheme)
        if not configured or is_direct(parts, self.settings.no_proxy):
            return None
        proxy = urlsplit(configured if "://" in configured else f"http://{configured}")
        try:
            _origin(proxy)
        except ValueError as error:
            raise HubError(f"{parts.scheme.upper()}_PROXY: its port is no port") from error
        if proxy.scheme != "http" or not proxy.hostname:
            # The message omits the whole value, which may contain a password.
            raise HubError(
                f"{parts.scheme.upper()}_PROXY: a proxy of kind {shown(proxy.scheme, 20)!r} is not "
                "supported: name one as http://HOST:PORT"
            )
        return proxy


def is_direct(parts: SplitResult, no_proxy: tuple[str, ...]) -> bool:
    """Whether NO_PROXY contains this host (with or without its port) or one of its parent
    domains.
    """
    host = (parts.hostname or "").lower()
    for entry in no_proxy:
        name = entry.removeprefix("*").lstrip(".")
        if entry == "*" or name in (host, f"{host}:{_origin(parts)[2]}"):
            return True
        if name and host.endswith(f".{name}"):
            return True
    return False


def number(text: str | None) -> int | None:
    """The number in a header; None if the header has no number."""
    digits = (text or "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def cause(error: BaseException) -> str:
    """The reason of a failed connection, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate is not trusted ({shown(error.verify_message)}); a proxy that "
            "inspects TLS needs its certificate in REQUESTS_CA_BUNDLE"
        )
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "the name of the host is not known"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected):
        return "the connection was closed before the end"
    if isinstance(error, OSError) and error.strerror:
        return shown(error.strerror)
    return shown(str(error) or type(error).__name__)


def busy(status: int) -> str:
    if status == 429:
        return "too many requests (429)"
    return f"the server has no answer now ({status})"


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header, which has a number or a date; None if it has neither."""
    seconds = number(retry_after)
    if seconds is not None:
        return float(seconds)
    try:
        return max(parsedate_to_datetime(retry_after or "").timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError, OSError):
        return None


def _redirected(url: str, target: str) -> str:
    joined = urljoin(url, target)
    try:
        before, after = urlsplit(url), urlsplit(joined)
        _origin(after)
    except ValueError as error:
        raise HubError(f"{address(url)}: a redirect to no address: {shown(target)}") from error
    if after.scheme not in ("http", "https") or not after.hostname:
        raise HubError(f"{address(url)}: a redirect to {shown(target)}, which is not followed")
    if before.scheme == "https" and after.scheme == "http":
        raise HubError(f"{address(url)}: a redirect to {address(joined)}, which is not encrypted")
    return joined


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    """Scheme, host and port. ValueError for an invalid port."""
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(words).decode('ascii')}"}
