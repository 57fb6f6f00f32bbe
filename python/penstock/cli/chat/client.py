"""Client that streams chat answers from any OpenAI-compatible server."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from penstock.cli.chat.markdown import printable
from penstock.cli.local_server import events
from penstock.core import InvalidValueError, PenstockError

TIMEOUT = 600.0
"""Timeout in seconds: a server that sends nothing for this long counts as dead."""

_TOKENS = ("content", "reasoning_content", "reasoning")
"""Members of a streamed delta that contain generated text."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions raised when the members of an unexpected body are read."""


class ChatError(PenstockError):
    """A question or command failed. The message is the reason. It has no control characters that a
    terminal would interpret, because parts of it may come from the server.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


@dataclass
class Measures:
    """Token counts and times of an answer. Counts are None if the server does not report them, and
    times are None until the first token.
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    first: float | None = None
    """Seconds from the request to the first token."""
    rest: float = 0.0
    """Seconds from the first token to the last."""

    cut: bool = False
    """Whether the answer was truncated at the maximum length."""

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first token; None if unknown."""
        if self.completion is None or self.completion < 2 or self.rest <= 0:
            return None
        return (self.completion - 1) / self.rest

    def count(self, usage: Mapping[str, Any]) -> None:
        """Read the token counts from the `usage` of an answer."""
        self.prompt = _tokens(usage.get("prompt_tokens"))
        self.completion = _tokens(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached = _tokens(details.get("cached_tokens"))


class ChatClient:
    """`url` is the server's address, with or without `/v1`. `model` is the name of one of its
    models; None for the first model in the server's list. `settings` are members of each request.
    """

    def __init__(
        self, url: str, key: str | None, model: str | None, settings: Mapping[str, object]
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValueError("--url", url, "an address such as http://127.0.0.1:8000")
        self._url = parts
        self._prefix = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._contexts: dict[str, int | None] = {}
        self._counts = True
        self.settings = dict(settings)
        self.model = model or self._first_model()

    def answer(
        self, messages: Sequence[Mapping[str, str]], measures: Measures
    ) -> Generator[str, None, None]:
        """Send `messages`, and yield the answer piece by piece. Closing the iterator cancels the
        request. `measures` is updated while the answer arrives.
        """
        asked = time.monotonic()
        connection, response = self._ask(messages)
        try:
            for event in events(response):
                if "error" in event:
                    raise ChatError(_message(event))
                if isinstance(usage := event.get("usage"), dict):
                    measures.count(usage)
                choice = _first_choice(event)
                measures.cut |= choice.get("finish_reason") == "length"
                delta = choice.get("delta") or {}
                if any(delta.get(name) for name in _TOKENS):
                    now = time.monotonic() - asked
                    measures.first = now if measures.first is None else measures.first
                    measures.rest = now - measures.first
                if text := delta.get("content"):
                    # JSON can contain half of a surrogate pair, which no output can encode.
                    yield str(text).encode(errors="replace").decode()
        except (OSError, http.client.HTTPException, *_MALFORMED) as error:
            raise ChatError(f"the answer broke off: {error}") from error
        finally:
            connection.close()

    def _ask(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        body = {"model": self.model, "messages": messages, "stream": True, **self.settings}
        if self._counts:
            try:
                counted = {**body, "stream_options": {"include_usage": True}}
                return self._send("POST", "/chat/completions", json.dumps(counted))
            except ChatError as error:
                # Some servers reject this field; their error names it.
                if "stream_options" not in str(error):
                    raise
                self._counts = False
        return self._send("POST", "/chat/completions", json.dumps(body))

    def models(self) -> dict[str, int | None]:
        """The server's models by name, each with its context length in tokens, or None if the
        server does not report it.
        """
        connection, response = self._send("GET", "/models", None)
        try:
            listed = json.loads(response.read())["data"]
            self._contexts = {
                str(model["id"]): _tokens(model.get("max_model_len")) for model in listed
            }
        except (OSError, http.client.HTTPException, *_MALFORMED) as error:
            raise ChatError(f"{self._url.geturl()} names no model: pass one") from error
        finally:
            connection.close()
        return self._contexts

    def context(self) -> int | None:
        """Context length of the model in tokens; None if the server does not report it."""
        if self.model not in self._contexts:
            with contextlib.suppress(ChatError):
                self.models()
            # Query the server only once, even if it does not report the length.
            self._contexts.setdefault(self.model, None)
        return self._contexts[self.model]

    def _first_model(self) -> str:
        for name in self.models():
            return name
        raise ChatError(f"{self._url.geturl()} names no model: pass one")

    def _send(
        self, method: str, path: str, body: str | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        made = (
            http.client.HTTPSConnection
            if self._url.scheme == "https"
            else http.client.HTTPConnection
        )
        connection = made(self._url.hostname or "", self._url.port, timeout=TIMEOUT)
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ChatError(_refusal(response))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ChatError(f"{self._url.geturl()} cannot be reached: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection, response


def _tokens(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _first_choice(event: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice of an event; empty for an event without choices."""
    choices = event.get("choices")
    return choices[0] if isinstance(choices, list) and choices else {}


def _refusal(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        return _message(json.loads(text))
    except ValueError:
        return f"the server answered {response.status} {response.reason}"


def _message(body: Any) -> str:
    """The error message in a response body, on one line. The body is in OpenAI's error format or a
    simpler one.
    """
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())
