"""Polls one address over HTTP: its metrics, its readiness, and a gateway's replicas.

The API key is sent only to addresses given by the user, never to addresses reported by a gateway.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from penstock.core import InvalidValueError
from penstock_ops.top.exposition import Page, parse
from penstock_ops.top.history import DEAD, NOT_READY, READY, Reading, Replica
from penstock_ops.top.replicas import replicas_of_document, replicas_of_metrics

PATIENCE = 5.0
"""Timeout in seconds for all requests of one poll together."""
MOST_BYTES = 8 << 20
"""Maximum size of a response."""
GATEWAY = "penstock:gateway_requests_open"
MISSING = (http.client.NOT_FOUND, http.client.METHOD_NOT_ALLOWED)
CLOSED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)


@dataclass(frozen=True, slots=True)
class Target:
    """An address without a trailing slash, and the settings for connecting to it."""

    base: str
    key: str | None = None
    insecure: bool = False
    """Accept any certificate."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def text(self) -> str:
        return self.body.decode(errors="replace")

    def document(self) -> Mapping[str, Any]:
        """The body if it is a JSON object, else an empty mapping."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class NoAnswerError(Exception):
    """There is no response; the message has the reason."""


def base_of(text: str) -> str:
    """Normalise `text` to http(s)://HOST:PORT/PATH, without a trailing `/v1` or `/metrics`. Raises
    InvalidValueError for an invalid address.
    """
    expected = "HOST:PORT, http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment or not text.isprintable():
        raise InvalidValueError("URL", text, expected)
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    if not f"{parts.netloc}{path}".isascii() or " " in parts.netloc + path:
        raise InvalidValueError("URL", text, expected)
    return f"{parts.scheme}://{parts.netloc}{path}"


def read(target: Target) -> Reading:
    """Poll once, within PATIENCE seconds plus the time for resolving the host name. Never raises
    because of a server's behaviour.
    """
    deadline = time.monotonic() + PATIENCE
    try:
        metrics = get(target, "/metrics", deadline)
        ready = get(target, "/ready", deadline)
        if ready.status in (*MISSING, *CLOSED):
            ready = get(target, "/health", deadline)
        page = parse(metrics.text()) if metrics.status == http.client.OK else Page()
        state, error = condition(metrics, page, ready)
        if GATEWAY not in page.samples:
            return Reading(time.monotonic(), state, page, error, models_of_metrics(page))
        return of_gateway(target, page, (state, error), deadline)
    except NoAnswerError as error:
        return Reading(time.monotonic(), DEAD, error=str(error))


def condition(metrics: Answer, page: Page, ready: Answer) -> tuple[str, str]:
    """State and error of an address that has responded."""
    if ready.status != http.client.OK:
        return NOT_READY, message(ready)
    if metrics.status != http.client.OK:
        return READY, f"no metrics: {metrics.status} at /metrics"
    return READY, "" if page.samples else "no metrics of Penstock or vLLM at /metrics"


def message(answer: Answer) -> str:
    """The message of an error in OpenAI's format, or the status code."""
    error = answer.document().get("error")
    words = error.get("message") if isinstance(error, dict) else None
    name = http.client.responses.get(answer.status, "")
    return words if isinstance(words, str) and words else f"{answer.status} {name}".strip()


def of_gateway(target: Target, page: Page, found: tuple[str, str], deadline: float) -> Reading:
    """The reading of a gateway. If the gateway rejects the API key, its metrics are still shown."""
    (state, error), models = found, get(target, "/v1/models", deadline)
    listed = get(target, "/replicas", deadline)
    if listed.status in CLOSED and not error:
        error = f"{listed.status} at /replicas: give its key with --api-key or PENSTOCK_API_KEY"
    document = listed.document() if listed.status == http.client.OK else {}
    replicas: tuple[Replica, ...] = ()
    if isinstance(document.get("pools"), list):
        replicas = replicas_of_document(document)
    else:
        replicas = replicas_of_metrics(page)
    at, names = time.monotonic(), models_of_list(models)
    return Reading(at, state, page, error, names, is_gateway=True, replicas=replicas)


def models_of_metrics(page: Page) -> tuple[str, ...]:
    return tuple(page.by("vllm:num_requests_running", "model_name"))


def models_of_list(answer: Answer) -> tuple[str, ...]:
    if answer.status != http.client.OK:
        return ()
    data = answer.document().get("data")
    ids = [one.get("id") for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    return tuple(name for name in ids if isinstance(name, str))


def get(target: Target, path: str, deadline: float) -> Answer:
    """The response to a GET request. Redirects are not followed. Raises NoAnswerError."""
    parts = urlsplit(target.base)
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise NoAnswerError(f"no answer within {PATIENCE:.0f} s")
    connection = connected(parts.scheme, parts.netloc, seconds, target.insecure)
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    try:
        connection.request("GET", parts.path + path, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, body(response, deadline))
    except TimeoutError:
        raise NoAnswerError(f"no answer within {PATIENCE:.0f} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswerError(words(error)) from None
    finally:
        connection.close()


def connected(
    scheme: str, netloc: str, seconds: float, insecure: bool
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=seconds)
    return http.client.HTTPSConnection(netloc, timeout=seconds, context=tls(insecure))


@cache
def tls(insecure: bool) -> ssl.SSLContext:
    """The TLS context. It is created once, because it reads the system's certificates."""
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The response body. Raises TimeoutError after the deadline, even if bytes still arrive, and
    NoAnswerError for a body that is too long or truncated.
    """
    pieces, size = [], 0
    while piece := response.read1(1 << 16):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_BYTES:
            raise NoAnswerError(f"an answer of more than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise NoAnswerError("connection closed in the middle of an answer")
    return b"".join(pieces)


def words(error: Exception) -> str:
    """Reason for a missing response, without class names and error numbers."""
    if isinstance(error, socket.gaierror):
        return f"no such host: {error.strerror}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}; --insecure accepts it"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error.strerror or 'failed'}"
    if isinstance(error, http.client.RemoteDisconnected):
        return "connection closed without an answer"
    if isinstance(error, http.client.HTTPException):
        return "no HTTP"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
