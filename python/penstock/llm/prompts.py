"""Reads prompts, which callers may give in several forms, and renders conversations to text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from penstock.core import InvalidValueError, PenstockError

if TYPE_CHECKING:
    from penstock._native import Tokenizer

Message = Mapping[str, Any]


class TextPrompt(TypedDict, total=False):
    prompt: str
    cache_salt: str
    """Only requests with the same salt share cached KV."""


class TokensPrompt(TypedDict, total=False):
    prompt_token_ids: Sequence[int]
    prompt: str
    """Text for the result; it is not tokenized."""
    cache_salt: str


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
FIELDS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    text: str | None
    ids: list[int]
    salt: bytes = b""
    priority: int = 0


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list. A text, a mapping, or a sequence of token ids is one prompt; any other
    sequence is a list of prompts.
    """
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def read_prompt(prompt: Prompt, tokenizer: Tokenizer) -> ReadPrompt:
    """Tokenize a prompt of any form. Raises InvalidValueError, which names a missing or unknown
    member of a mapping.
    """
    if isinstance(prompt, str):
        return ReadPrompt(prompt, tokenizer.encode(prompt, True))
    if not isinstance(prompt, Mapping):
        return ReadPrompt(None, list(prompt))
    for name, value in prompt.items():
        if name not in FIELDS and value is not None:
            raise InvalidValueError(f"prompt[{name!r}]", value, f"only {', '.join(FIELDS)}")
    text, salt = prompt.get("prompt"), str(prompt.get("cache_salt") or "").encode()
    ids = cast("Sequence[int] | None", prompt.get("prompt_token_ids"))
    if ids is not None:
        return ReadPrompt(text, list(ids), salt)
    if not isinstance(text, str):
        raise InvalidValueError("prompt", dict(prompt), "a text `prompt` or `prompt_token_ids`")
    return ReadPrompt(text, tokenizer.encode(text, True), salt)


def truncated(ids: list[int], keep: int | None, max_model_len: int) -> list[int]:
    """The last `keep` of `ids`. -1 keeps as many as leave room for one output token; None keeps
    all.
    """
    if keep is None:
        return ids
    return ids[-(max_model_len - 1 if keep == -1 else keep) :]


@dataclass(frozen=True, slots=True)
class ChatOptions:
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidValueError(
                "add_generation_prompt", True, "False with continue_final_message"
            )


def read_conversation(
    messages: Sequence[Message], options: ChatOptions, tokenizer: Tokenizer
) -> ReadPrompt:
    """Render a conversation with the model's chat template, which writes special tokens itself, so
    none are added.
    """
    try:
        text = tokenizer.render_chat(
            json.dumps(list(messages)),
            options.add_generation_prompt,
            json.dumps(options.tools and list(options.tools)),
            json.dumps(dict(options.kwargs or {})),
            options.continue_final_message,
        )
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return ReadPrompt(text, tokenizer.encode(text, False))
