"""Prompt maker that uses the server's tokenizer over HTTP: /tokenize in the format of vLLM and
Penstock, or of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock_lab.bench.prompts.maker import CountChat, PromptMaker
from penstock_lab.bench.prompts.server import Fetch, Reply, Served
from penstock_lab.bench.prompts.words import COMMON, usable
from penstock_lab.bench.request import Message

LIMIT = 256
"""Maximum number of words in the vocabulary. Testing a word takes an HTTP request."""
MINIMUM = 16

Tokenize = Callable[[str, bool], list[int] | None]
"""Function (text, whether to add special tokens) -> token ids; None if the server's /tokenize has
another format.
"""


def from_server(server: Served) -> PromptMaker | None:
    """The maker of a server with /tokenize, else None."""
    if server.fetch is None:
        return None
    for form in (_vllm, _llama_cpp):
        maker = _maker(*form(server.fetch, server.model))
        if maker is not None:
            return maker
    return None


def _maker(tokenize: Tokenize, chat: CountChat | None) -> PromptMaker | None:
    plain, whole = tokenize("the the", False), tokenize("the the", True)
    if plain is None or whole is None:
        return None

    def encode(text: str) -> list[int]:
        return tokenize(text, False) or []

    words = usable(COMMON, encode, LIMIT)
    if len(words) < MINIMUM or len(encode(" ".join(words.values()))) != len(words):
        return None
    special = len(whole) - len(plain)
    return PromptMaker(
        "/tokenize of the server",
        tuple(words),
        words,
        special,
        count_text=lambda text: len(encode(text)),
        count_chat=chat,
    )


def _vllm(fetch: Fetch, model: str) -> tuple[Tokenize, CountChat]:
    def tokenize(text: str, special: bool) -> list[int] | None:
        body = {"model": model, "prompt": text, "add_special_tokens": special}
        return _tokens(fetch("POST", "/tokenize", body))

    def chat(messages: Sequence[Message]) -> int | None:
        tokens = _tokens(fetch("POST", "/tokenize", {"model": model, "messages": messages}))
        return None if tokens is None else len(tokens)

    return tokenize, chat


def _llama_cpp(fetch: Fetch, model: str) -> tuple[Tokenize, None]:
    def tokenize(text: str, special: bool) -> list[int] | None:
        return _tokens(fetch("POST", "/tokenize", {"content": text, "add_special": special}))

    return tokenize, None


def _tokens(reply: Reply) -> list[int] | None:
    tokens = (
        reply.body.get("tokens")
        if reply.status == 200 and isinstance(reply.body, Mapping)
        else None
    )
    if not isinstance(tokens, list) or not tokens:
        return None  # llama.cpp answers a request in vLLM's format without tokens.
    return tokens if all(isinstance(token, int) for token in tokens) else None
