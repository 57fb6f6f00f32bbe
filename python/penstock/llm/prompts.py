"""Reads prompts, which callers may give in several forms, and renders conversations to text."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from penstock.core import InvalidValueError, PenstockError
from penstock.llm.arguments import check_types, is_integer

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
MEMBERS = {
    "prompt": str | None,
    "prompt_token_ids": Sequence[int] | None,
    "cache_salt": str | None,
}


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
    if isinstance(prompts, str | Mapping):
        return [cast(Prompt, prompts)]
    items: list[Any] = list(prompts)
    return [items] if items and is_integer(items[0]) else items


def is_text(prompt: Prompt) -> bool:
    """Whether a tokenizer is needed to read the prompt."""
    ids_given = isinstance(prompt, Mapping) and prompt.get("prompt_token_ids") is not None
    return isinstance(prompt, str | Mapping) and not ids_given


def read_prompt(prompt: Prompt, tokenizer: Tokenizer) -> ReadPrompt:
    """Tokenize a prompt of any form. Raises InvalidValueError, which names a missing or unknown
    member of a mapping.
    """
    if isinstance(prompt, str):
        return ReadPrompt(prompt, encoded(prompt, tokenizer, True))
    if not isinstance(prompt, Mapping):
        return ReadPrompt(None, _token_ids("prompts", prompt))
    for name, value in prompt.items():
        if name not in MEMBERS and value is not None:
            raise InvalidValueError(f"prompt[{name!r}]", value, f"only {', '.join(MEMBERS)}")
    check_types(prompt, MEMBERS)
    text, salt = prompt.get("prompt"), str(prompt.get("cache_salt") or "").encode()
    ids = cast("Sequence[int] | None", prompt.get("prompt_token_ids"))
    if ids is not None:
        return ReadPrompt(text, _token_ids("prompt_token_ids", ids), salt)
    if not isinstance(text, str):
        raise InvalidValueError("prompt", dict(prompt), "a text `prompt` or `prompt_token_ids`")
    return ReadPrompt(text, encoded(text, tokenizer, True), salt)


def _token_ids(name: str, ids: Sequence[int]) -> list[int]:
    """The ids as a list. Raises InvalidValueError for an id of more than 32 bits; the scheduler
    rejects ids outside the vocabulary.
    """
    try:
        return array("i", ids).tolist()
    except OverflowError as error:
        raise InvalidValueError(name, max(ids, key=abs), "token ids") from error


def encoded(text: str, tokenizer: Tokenizer, add_special_tokens: bool) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens)
    except ValueError as error:
        raise PenstockError(str(error)) from error


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
            _json("messages", list(messages)),
            options.add_generation_prompt,
            _json("tools", options.tools and list(options.tools)),
            _json("chat_template_kwargs", dict(options.kwargs or {})),
            options.continue_final_message,
        )
    except ValueError as error:
        raise PenstockError(str(error)) from error
    return ReadPrompt(text, encoded(text, tokenizer, False))


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise PenstockError(f"{name}: {error}") from error
