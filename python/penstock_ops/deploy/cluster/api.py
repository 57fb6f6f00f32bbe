"""Requests to a Kubernetes API server, over any HTTP connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Protocol
from urllib.parse import urlencode

from penstock.core import PenstockError

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
"""Server-side apply. JSON is valid YAML."""
BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 400, 403, 404, 409, 422


class ApiError(PenstockError):
    """An unsuccessful answer, with the HTTP status and the server's message."""

    def __init__(self, status: int, message: str, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes
        """Fields and their errors, for conflicts and invalid objects."""


class Api(Protocol):
    """The API calls used by apply, diff, status and delete."""

    def call(
        self, method: str, path: str, body: object = None, content: str = JSON, **query: str
    ) -> dict[str, Any]:
        """The object in the answer. ApiError for a refusal, PenstockError if no server answers."""

    def text(self, path: str, **query: str) -> str:
        """The body of a GET as text."""


class HttpApi:
    """An API server. `connect` creates a new connection for each request, since a command makes
    only a few.
    """

    def __init__(
        self,
        connect: Callable[[], HTTPConnection],
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._connect, self._headers = connect, headers

    def call(
        self, method: str, path: str, body: object = None, content: str = JSON, **query: str
    ) -> dict[str, Any]:
        answer = self._send(method, path, body, content, query)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise PenstockError(f"{method} {path}: the answer is no JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    def text(self, path: str, **query: str) -> str:
        return self._send("GET", path, None, JSON, query).decode(errors="replace")

    def _send(
        self, method: str, path: str, body: object, content: str, query: Mapping[str, str]
    ) -> bytes:
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body).encode()
        connection = self._connect()
        try:
            headers = {"content-type": content, "accept": "*/*", **self._headers()}
            connection.request(method, target, data, headers)
            answer = connection.getresponse()
            found = answer.read()
        except (OSError, HTTPException) as error:
            raise PenstockError(f"the API server does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise refusal(answer.status, found)
        return found


def refusal(status: int, answer: bytes) -> ApiError:
    """The error of an answer. Its body is a Status object if the API server itself created it."""
    text = answer.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return ApiError(status, f"status {status}: {text[:500]}")
    details = found.get("details")
    listed = details.get("causes") if isinstance(details, dict) else None
    causes = tuple(
        ": ".join(str(one[key]) for key in ("field", "message") if one.get(key))
        for one in listed or []
        if isinstance(one, dict)
    )
    return ApiError(status, str(found.get("message") or f"status {status}"), causes)
