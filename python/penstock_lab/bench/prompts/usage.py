"""Token counts in the server's usage data, from requests for one output token. They are the best
source for the overhead, and the last resort for finding single-token words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_lab.bench.prompts.maker import PromptMaker
from penstock_lab.bench.prompts.server import Served
from penstock_lab.bench.prompts.words import COMMON

LIMIT = 32
"""Maximum number of words in the vocabulary. Testing a word takes a request to the model."""
MINIMUM = 16
SHORT, LONG = 12, 36
"""Lengths in tokens of two test prompts. If the server adds the same number to both, this is its
overhead; otherwise the words are not single tokens.
"""


def from_usage(server: Served) -> PromptMaker | None:
    """A maker of common words that the server counts as one token each. None if there are too few,
    or if the server reports no usage.

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
    """Numbers of tokens that the server counted in prompts of SHORT and of LONG words."""

    short: int
    long: int

    @property
    def constant(self) -> bool:
        return self.long - self.short == LONG - SHORT and self.short >= SHORT

    @property
    def overhead(self) -> int:
        return self.short - SHORT


def measure(server: Served, maker: PromptMaker) -> Measured | None:
    """Let the server count the tokens of two prompts. None without a server, or if it reports no
    usage.
    """
    counts = [
        server.prompt_tokens(maker.prompt(_spread(maker.vocabulary, length)))
        for length in (SHORT, LONG)
    ]
    short, long = counts
    return None if short is None or long is None else Measured(short, long)


def _spread(vocabulary: Sequence[int], length: int) -> list[int]:
    """Ids spread over the whole vocabulary, because rare words reveal a wrong tokenizer."""
    return [vocabulary[(index * 7919) % len(vocabulary)] for index in range(length)]
