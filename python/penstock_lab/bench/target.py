"""The server under load: address, model, readiness."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.prompts.server import Reply, Served

CONNECT_TIMEOUT = 10.0
FETCH_TIMEOUT = 60.0
"""Timeout in seconds of a small request, such as the list of models."""
RETRY_INTERVAL = 0.5
EXCERPT = 300
FORBIDDEN = (401, 403)
NOT_THERE = (404, 405, 501)


class NoAnswerError(PenstockError):
    """No server accepted a connection at the address."""


class StatusError(PenstockError):
    """The server answered with a status other than 2xx."""

    def __init__(self, url: str, status: int, text: bytes) -> None:
        said = text[:EXCERPT].decode(errors="replace").strip() or "(nothing)"
        remedy = "; give a key with --header Authorization='Bearer KEY' or OPENAI_API_KEY"
        super().__init__(f"{url} answered {status}: {said}{remedy if status in FORBIDDEN else ''}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    """Address and headers. `base` has no trailing `/`; paths start with one."""

    base: str
    headers: tuple[tuple[str, str], ...] = ()
    insecure: bool = False
    """Whether to accept any TLS certificate."""

    def fetch(self, path: str, body: object = None) -> object:
        """The JSON answer of the server at `path`; None for an empty answer. Errors as in `ask`,
        and PenstockError if the answer is not JSON.
        """
        text = self.ask(path, body)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            excerpt = text[:EXCERPT].decode(errors="replace")
            raise PenstockError(
                f"{self.base + path} answered with something else than JSON: {excerpt}"
            ) from error

    def ask(self, path: str, body: object = None, *, timeout: float = FETCH_TIMEOUT) -> bytes:
        """Send GET, or POST with `body` as JSON; returns the answer's body. Raises NoAnswerError
        without a connection, StatusError for a status other than 2xx.
        """
        status, text = self._exchange("GET" if body is None else "POST", path, body, timeout)
        if not 200 <= status < 300:
            raise StatusError(self.base + path, status, text)
        return text

    def reply(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Reply:
        """The server's answer with any status; used by `penstock_lab.bench.prompts`."""
        status, text = self._exchange(method, path, body, FETCH_TIMEOUT)
        try:
            return Reply(status, json.loads(text))
        except ValueError:
            return Reply(status, text.decode(errors="replace"))

    def _exchange(self, method: str, path: str, body: object, timeout: float) -> tuple[int, bytes]:
        url = self.base + path
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **dict(self.headers)}
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with _opener(self.insecure).open(request, timeout=timeout) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise NoAnswerError(
                f"no answer from {url}: {reason}; is a server running there?"
            ) from error


def _opener(insecure: bool) -> urllib.request.OpenerDirector:
    # Ignore proxies from the environment, because the load generator does not use them either.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if insecure:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


@dataclass(frozen=True, eq=False)
class Target:
    """A server, one endpoint and one model. Two objects are never equal, so that a cache keyed by a
    target holds for one `discover` call.
    """

    address: Address
    backend: str
    endpoint: str
    """Path below the address."""
    model: str
    """Name of the model in requests."""
    model_id: str
    """The value of --model, else the model's checkpoint as the server names it."""
    max_model_len: int | None = None
    """Maximum tokens of prompt and output together; None if the server does not report it."""
    idle_timeout: float | None = None
    """A request fails if no byte of its answer arrives for this many seconds; None for no limit."""

    @property
    def base_url(self) -> str:
        return self.address.base

    @property
    def chat(self) -> bool:
        return self.backend == "openai-chat"

    def served(self) -> Served:
        """The server as prompt makers see it."""
        return Served(self.model, self.endpoint, self.address.reply, root=self.model_id)

    def load_run(self, max_concurrency: int | None, keep_text: bool) -> str:
        """JSON configuration for the native `LoadRun`."""
        parts = urllib.parse.urlsplit(self.base_url)
        return json.dumps(
            {
                "base_url": f"{parts.scheme}://{parts.netloc}",
                "path": parts.path + self.endpoint,
                "headers": {"Content-Type": "application/json", **dict(self.address.headers)},
                "max_concurrency": max_concurrency,
                "connect_timeout_s": CONNECT_TIMEOUT,
                "idle_timeout_s": self.idle_timeout,
                "insecure": self.address.insecure,
                "keep_text": keep_text,
            }
        )


def base_url(text: str) -> str:
    """`text` as a base URL; InvalidValueError unless it is http(s)://host.

    A trailing `/v1`, which OpenAI's client requires, is removed, because endpoints include it.
    """
    parts = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidValueError("--base-url", text, "http://HOST:PORT or https://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Values of the flags that describe the server, endpoint and model."""

    backend: str
    endpoint: str
    model: str | None
    served_model_name: str | None
    idle_timeout: float | None = None


def discover(address: Address, wanted: Wanted) -> Target:
    """Query a server for its models and their limits. Without --model, the target is the first
    model. A server without /v1/models requires --model.
    """
    try:
        models = _models(address.fetch("/v1/models"))
    except StatusError as error:
        if wanted.model is None or error.status in FORBIDDEN:
            raise
        models = []
    if wanted.model is None and not models:
        raise PenstockError(f"{address.base}/v1/models lists no model: say which with --model")
    name = wanted.served_model_name or wanted.model or str(models[0]["id"])
    entry = next(
        (model for model in models if model.get("id") == name),
        models[0] if len(models) == 1 else {},
    )
    length = entry.get("max_model_len")
    return Target(
        address,
        backend=wanted.backend,
        endpoint=wanted.endpoint,
        model=name,
        model_id=wanted.model or str(entry.get("root") or name),
        max_model_len=length if isinstance(length, int) else None,
        idle_timeout=wanted.idle_timeout,
    )


def _models(document: object) -> list[Mapping[str, object]]:
    data = document.get("data") if isinstance(document, dict) else None
    return [model for model in data or [] if isinstance(model, dict) and "id" in model]


def wait_ready(
    address: Address, seconds: float, pause: Callable[[float], None] = time.sleep
) -> None:
    """Wait until /health answers 2xx, or /v1/models on a server without /health. PenstockError with
    the last answer after `seconds`, or at once if access is denied.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            _ask_ready(address, max(deadline - time.monotonic(), 1.0))
            return
        except (NoAnswerError, StatusError) as error:
            lasting = isinstance(error, StatusError) and error.status in FORBIDDEN
            if lasting or time.monotonic() >= deadline:
                raise PenstockError(f"not ready within {seconds:g} s: {error}") from error
        pause(RETRY_INTERVAL)


def _ask_ready(address: Address, timeout: float) -> None:
    try:
        address.ask("/health", timeout=timeout)
    except StatusError as error:
        if error.status not in NOT_THERE:
            raise
        address.ask("/v1/models", timeout=timeout)
