"""Client that streams chat answers from any OpenAI-compatible server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from penstock.cli.local_server import events
from penstock.core import InvalidValueError, PenstockError

TIMEOUT = 600.0
"""Seconds without a byte from the server after which it counts as dead."""


class ChatError(PenstockError):
    """The server gives no answer. The message is one line with the reason."""


class ChatClient:
    """`url` is the server's address, with or without `/v1`. `model` is the name of one of its
    models; None for the first that it lists.
    """

    def __init__(
        self, url: str, key: str | None, model: str | None, options: Mapping[str, object]
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValueError("--url", url, "an address such as http://127.0.0.1:8000")
        self._url = parts
        self._prefix = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._options = dict(options)
        self.model = model or self._first_model()

    def answer(self, messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
        """Send `messages`, and yield the answer piece by piece. Closing the iterator cancels the
        request.
        """
        body = {"model": self.model, "messages": messages, "stream": True, **self._options}
        connection, response = self._send("POST", "/chat/completions", json.dumps(body))
        try:
            for event in events(response):
                if "error" in event:
                    raise ChatError(_message(event))
                choices = event.get("choices")
                if isinstance(choices, list) and choices:
                    text = choices[0].get("delta", {}).get("content")
                    if text:
                        yield text
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ChatError(f"the answer broke off: {error}") from error
        finally:
            connection.close()

    def _first_model(self) -> str:
        connection, response = self._send("GET", "/models", None)
        try:
            return str(json.loads(response.read())["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ChatError(f"{self._url.geturl()} names no model: pass one") from error
        finally:
            connection.close()

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


def _refusal(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        return _message(json.loads(text))
    except ValueError:
        return f"the server answered {response.status} {response.reason}"


def _message(body: Any) -> str:
    """The message, on one line, of a response's body that reports an error, in OpenAI's format or a
    simpler one.
    """
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())
