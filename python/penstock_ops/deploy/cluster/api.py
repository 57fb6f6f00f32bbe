"""Requests to a Kubernetes API server, and the errors that it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from penstock.core import PenstockError

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
"""Content type of server-side apply. Bodies are JSON, which is valid YAML."""
BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 400, 403, 404, 409, 422


class ApiError(PenstockError):
    """An answer with an error status: the HTTP status, and the server's message."""

    def __init__(self, status: int, message: str, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes
        """For conflicts and invalid objects: each wrong field and its error, as text."""


class Api:
    """An API server, reached through `send`: (method, path with query, content type, body) -> (HTTP
    status, body). `send` raises OSError if no server answers, ValueError if the login fails.
    """

    def __init__(self, send: Callable[[str, str, str, bytes], tuple[int, bytes]]) -> None:
        self._send = send

    def call(
        self, method: str, path: str, body: object = None, content: str = JSON, **query: str
    ) -> dict[str, Any]:
        """Send a request; returns the JSON object of the answer. ApiError for an error status,
        PenstockError if no server answers.
        """
        answer = self._answer(method, path, body, content, query)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise PenstockError(f"{method} {path}: the answer is no JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    def text(self, path: str, **query: str) -> str:
        """The body of the response to a GET, as text."""
        return self._answer("GET", path, None, JSON, query).decode(errors="replace")

    def _answer(
        self, method: str, path: str, body: object, content: str, query: Mapping[str, str]
    ) -> bytes:
        target = f"{path}?{urlencode(query)}" if query else path
        data = b"" if body is None else json.dumps(body).encode()
        try:
            status, found = self._send(method, target, content, data)
        except (OSError, HTTPException) as error:
            raise PenstockError(f"the API server does not answer: {error}") from error
        except ValueError as error:
            raise PenstockError(str(error)) from error
        if status >= 300:
            raise refusal(status, found)
        return found


def refusal(status: int, answer: bytes) -> ApiError:
    """The error for an answer with an error status. If the API server itself wrote the answer, its
    body is a Status object; a proxy's answer may be any text.
    """
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
