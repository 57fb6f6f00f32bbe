"""Token counts from requests for one token: authoritative for overhead, last resort for words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.server import Served
from penstock_lab.bench.prompts.words import COMMON

LIMIT = 32
"""Maximum number of words tried. Each costs the server a prompt and a token."""
MINIMUM = 16
SHORT, LONG = 12, 36
"""Prompt lengths that distinguish a constant overhead from a wrong count."""


def from_usage(server: Served) -> PromptMaker | None:
    """A maker of common words that the server counts as one token each; None if it reports no
    usage.

    The ids are placeholders: such prompts can only be sent as text.
    """
    two, four = server.prompt_tokens("the the"), server.prompt_tokens("the the the the")
    if two is None or four is None or four - two != 2:
        return None
    words: list[str] = []
    for word in dict.fromkeys(COMMON):
        if server.prompt_tokens(f"{word} {word}") == two:
            words.append(word)
        if len(words) == LIMIT:
            break
    if len(words) < MINIMUM:
        return None
    ids = range(len(words))
    return PromptMaker(
        "usage that the server reports", ids, dict(zip(ids, words, strict=True)), two - 2
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """Number of tokens that the server counted in prompts of SHORT and LONG ids."""

    short: int
    long: int

    @property
    def constant(self) -> bool:
        return self.long - self.short == LONG - SHORT and self.short >= SHORT

    @property
    def overhead(self) -> int:
        return self.short - SHORT


def measure(server: Served, maker: PromptMaker) -> Measured | None:
    """Let the server count two prompts. None without usage data or a server."""
    counts = [
        server.prompt_tokens(maker.prompt(_spread(maker.vocabulary, length)))
        for length in (SHORT, LONG)
    ]
    short, long = counts
    return None if short is None or long is None else Measured(short, long)


def _spread(vocabulary: Sequence[int], length: int) -> list[int]:
    """Ids spread over the whole vocabulary, because rare words reveal a wrong tokenizer."""
    return [vocabulary[(index * 7919) % len(vocabulary)] for index in range(length)]
