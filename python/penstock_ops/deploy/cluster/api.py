"""Requests to a Kubernetes API server, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from penstock.core import PenstockError

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
"""Server-side apply: JSON is YAML too."""
BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 400, 403, 404, 409, 422


class ApiError(PenstockError):
    """An answer that is no success: the HTTP status, and the server's message."""

    def __init__(self, status: int, message: str, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes
        """Fields and what is wrong with them, of conflicts and invalid objects."""


class Api:
    """An API server behind `send`: method, path with query, content type and body -> HTTP status
    and body. It raises OSError where no server answers, ValueError for a login that fails.
    """

    def __init__(self, send: Callable[[str, str, str, bytes], tuple[int, bytes]]) -> None:
        self._send = send

    def call(
        self, method: str, path: str, body: object = None, content: str = JSON, **query: str
    ) -> dict[str, Any]:
        """The answer's object. ApiError for a refusal, PenstockError where no server answers."""
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
    """The error of an answer, which is a Status object where the server itself made it."""
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
