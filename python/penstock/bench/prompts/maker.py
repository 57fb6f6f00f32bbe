"""Ids to prompts, and the number of tokens a server will count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.bench.request import Message, Prompt

CountText = Callable[[str], int]
CountChat = Callable[[Sequence[Message]], int | None]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Words of one token each, by id, and how to count other text."""

    name: str
    """Source, for messages and results."""
    words: Mapping[int, str]
    """`word` at the beginning of a text and ` word` after another are one token each; the latter's
    id.
    """
    special: int
    """Tokens that the tokenizer adds to a text by itself, such as BOS."""
    count_text: CountText | None = None
    """Tokens of a text without special ones. None: only the server could count them."""
    count_chat: CountChat | None = None
    """Tokens of a rendered conversation."""


class PromptMaker(Protocol):
    """Makes prompts for which the server counts exactly `len(ids) + overhead` tokens."""

    @property
    def name(self) -> str:
        """Source of the vocabulary."""
        ...

    @property
    def vocabulary(self) -> Sequence[int]:
        """Ids that prompts may consist of."""
        ...

    @property
    def special(self) -> int:
        """Tokens that the server adds within a requested length (BOS), as in vLLM's tools."""
        ...

    @property
    def template(self) -> int:
        """Tokens of the chat template, on top of a requested length, as in vLLM's tools."""
        ...

    @property
    def overhead(self) -> int:
        """`special + template`."""
        ...

    def prompt(self, ids: Sequence[int]) -> str | list[int]:
        """Text (at a chat endpoint: the user's message) or ids."""
        ...

    def count(self, prompt: Prompt) -> int | None:
        """Tokens that the server will count in any prompt. None: no tokenizer."""
        ...


@dataclass(frozen=True, slots=True)
class WordMaker:
    """Prompts of words from a lexicon; as ids when `as_ids`."""

    lexicon: Lexicon
    special: int
    template: int
    as_ids: bool = False
    vocabulary: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.lexicon.words))

    @property
    def name(self) -> str:
        return f"{self.lexicon.name}, {'token ids' if self.as_ids else 'text'}"

    @property
    def overhead(self) -> int:
        return self.special + self.template

    def prompt(self, ids: Sequence[int]) -> str | list[int]:
        if self.as_ids:
            return list(ids)
        words = self.lexicon.words
        return " ".join([words[token] for token in ids])

    def count(self, prompt: Prompt) -> int | None:
        if isinstance(prompt, str):
            counted = self._text(prompt)
            return None if counted is None else counted + self.special + self.template
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if not messages:
            return len(prompt)
        rendered = self.lexicon.count_chat(messages) if self.lexicon.count_chat else None
        return self._parts(messages) if rendered is None else rendered

    def _text(self, text: str) -> int | None:
        return None if self.lexicon.count_text is None else self.lexicon.count_text(text)

    def _parts(self, messages: Sequence[Message]) -> int | None:
        """Contents of the messages and the overhead of a one-message conversation for each; used
        without the template.
        """
        counts = [self._text(str(message.get("content", ""))) for message in messages]
        known = [count for count in counts if count is not None]
        return sum(known) + self.template * len(messages) if len(known) == len(counts) else None


@dataclass(frozen=True, slots=True)
class IdMaker:
    """Prompts of ids from a range, when nothing but the vocabulary's size is known."""

    vocabulary: range
    special: int = 0
    template: int = 0

    @property
    def name(self) -> str:
        return f"token ids {self.vocabulary.start} to {self.vocabulary.stop - 1}"

    @property
    def overhead(self) -> int:
        return self.special + self.template

    def prompt(self, ids: Sequence[int]) -> str | list[int]:
        return list(ids)

    def count(self, prompt: Prompt) -> int | None:
        if isinstance(prompt, str) or not all(isinstance(item, int) for item in prompt):
            return None
        return len(prompt) + self.overhead
