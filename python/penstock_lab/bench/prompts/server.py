"""The server in the form that prompt makers need: model, endpoint, and a function that sends one
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.core import PenstockError
from penstock_lab.bench.request import Message, Prompt

EXCERPT = 300


class Reply(NamedTuple):
    """An HTTP answer. `body` is its parsed JSON, or else its text."""

    status: int
    body: object


class Fetch(Protocol):
    """Sends one HTTP request and returns the complete answer. `path` starts at the server's root,
    for example `/tokenize` or `/v1/completions`.

    An unreachable server is a PenstockError; an answer with any status is a Reply.
    """

    def __call__(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Served:
    """The server that prompts are for. Without `fetch`, only a local tokenizer is used."""

    model: str
    """The model's name in requests."""
    endpoint: str = "/v1/completions"
    fetch: Fetch | None = None
    root: str | None = None
    """Field `root` of the model in /v1/models, often the path of its files."""

    @property
    def chat(self) -> bool:
        return self.endpoint.rstrip("/").endswith("/chat/completions")

    def prompt_tokens(self, prompt: Prompt) -> int | None:
        """Number of prompt tokens that the server reports in its usage data for `prompt`; None if
        it reports none.
        """
        if self.fetch is None:
            return None
        reply = self.fetch("POST", self.endpoint, self._one_token(prompt))
        if reply.status != 200:
            raise PenstockError(
                f"{self.endpoint} answered {reply.status} to a request for one token of "
                f"{self.model!r} with {_kind(prompt)}: {excerpt(reply.body)}"
            )
        usage = reply.body.get("usage") if isinstance(reply.body, Mapping) else None
        count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        return count if isinstance(count, int) and count > 0 else None

    def _one_token(self, prompt: Prompt) -> dict[str, object]:
        asked: dict[str, object] = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0,
            "stream": False,
        }
        if self.chat:
            return asked | {"messages": as_messages(prompt)}
        return asked | {"prompt": prompt}


def as_messages(prompt: Prompt) -> Sequence[Message]:
    """A prompt as the messages of a chat request: a text becomes one user message."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    messages = [item for item in prompt if isinstance(item, Mapping)]
    if len(messages) != len(prompt):
        raise PenstockError(
            "token ids cannot be sent to a chat endpoint: leave out --prompt-ids or use --backend "
            "openai"
        )
    return messages


def excerpt(body: object) -> str:
    """The beginning of an answer's body, for error messages."""
    text = str(body)
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "..."


def _kind(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return "a text prompt"
    return "token ids (--prompt-ids)" if prompt and isinstance(prompt[0], int) else "messages"
