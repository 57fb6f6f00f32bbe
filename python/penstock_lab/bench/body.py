"""Encodes a request as the JSON body for OpenAI's completions or chat endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core import PenstockError
from penstock_lab.bench.prompts.server import as_messages
from penstock_lab.bench.request import Prompt, Request

ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
"""Values of --backend, with the HTTP path of each. `vllm` is an alias of `openai`."""


@dataclass(frozen=True, slots=True)
class Body:
    """Body fields that all requests of a run share. Fields in `extra` override these attributes; a
    request's own fields override `extra`.
    """

    chat: bool
    model: str
    ignore_eos: bool = False
    logprobs: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    request_id_prefix: str | None = None
    """If set, each body has a `request_id`: this prefix and the request's index in the run."""

    def encode(self, request: Request, index: int) -> tuple[int, bytes]:
        """The encoded body, preceded by the number of output tokens that the answer must have (0:
        any number).
        """
        fields = self._fields(request)
        if self.request_id_prefix is not None:
            fields["request_id"] = f"{self.request_id_prefix}{index}"
        must = request.output_tokens if fields.get("ignore_eos") is True else 0
        return must, json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def _fields(self, request: Request) -> dict[str, object]:
        fields: dict[str, object] = {"model": self.model}
        if self.chat:
            fields["messages"] = as_messages(request.prompt)
            fields["max_completion_tokens"] = request.output_tokens
            if self.logprobs is not None:
                fields |= {"logprobs": True, "top_logprobs": self.logprobs}
        else:
            fields["prompt"] = _flat(request.prompt)
            fields["max_tokens"] = request.output_tokens
            if self.logprobs is not None:
                fields["logprobs"] = self.logprobs
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return {**fields, **self.extra, **request.extra}


def _flat(prompt: Prompt) -> object:
    if not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int):
        raise PenstockError(
            "the dataset holds conversations, which --backend openai cannot send: use --backend "
            "openai-chat"
        )
    return prompt
