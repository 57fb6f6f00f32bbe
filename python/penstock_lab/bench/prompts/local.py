"""Prompt maker based on a local tokenizer file. Its words come from the whole vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from random import Random

from penstock._native import Tokenizer
from penstock.core import PenstockError
from penstock.hub import locate_tokenizer
from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.words import usable
from penstock_lab.bench.request import Message

WORD = re.compile(r"[A-Za-z]{2,14}")
MINIMUM = 16


def from_file(tokenizer: str) -> PromptMaker:
    """The maker for an alias, a path or a hub name."""
    path = locate_tokenizer(tokenizer).path
    try:
        opened = Tokenizer(str(path))
    except ValueError as error:
        raise PenstockError(f"--tokenizer {tokenizer}: {error}") from error
    return maker(opened, f"tokenizer of {tokenizer}")


def maker(tokenizer: Tokenizer, name: str) -> PromptMaker:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, False)

    def chat(messages: Sequence[Message]) -> int | None:
        try:
            return len(tokenizer.encode(tokenizer.render_chat(json.dumps(messages), True), False))
        except ValueError:
            return None

    words = usable(_candidates(tokenizer), encode)
    mixed = list(words.values())
    Random(0).shuffle(mixed)
    if len(words) < MINIMUM or len(encode(" ".join(mixed))) != len(mixed):
        raise PenstockError(
            f"{name}: text of an exact length cannot be made of it ({len(words)} words are one "
            "token each): send token ids (--prompt-ids)"
        )
    special = len(tokenizer.encode("", True))
    return PromptMaker(name, tuple(words), words, special, 0, lambda text: len(encode(text)), chat)


def _candidates(tokenizer: Tokenizer) -> Iterator[str]:
    seen: set[str] = set()
    for token in range(tokenizer.vocab_size):
        word = tokenizer.decode([token], False).strip(" ")
        if WORD.fullmatch(word) and word not in seen:
            seen.add(word)
            yield word
