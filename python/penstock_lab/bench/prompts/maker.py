"""Ids to prompts, and the number of tokens a server will count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock_lab.bench.request import Message, Prompt

CountText = Callable[[str], int]
CountChat = Callable[[Sequence[Message]], int | None]


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts for which the server counts exactly `len(ids) + overhead` tokens."""

    name: str
    """Source of the vocabulary, for messages and results."""
    vocabulary: Sequence[int]
    """Ids that prompts may consist of."""
    words: Mapping[int, str] = field(default_factory=dict)
    """Text of each id: `word` at the beginning of a text and ` word` after another are one token
    each. Empty: ids are sent.
    """
    special: int = 0
    """Tokens that the server adds within a requested length (BOS), as in vLLM's tools."""
    template: int = 0
    """Tokens of the chat template, on top of a requested length, as in vLLM's tools."""
    count_text: CountText | None = None
    """Tokens of a text without special ones. None: only the server could count them."""
    count_chat: CountChat | None = None
    """Tokens of a rendered conversation."""

    @property
    def overhead(self) -> int:
        return self.special + self.template

    def prompt(self, ids: Sequence[int]) -> str | list[int]:
        """Text (at a chat endpoint: the user's message) or ids."""
        if not self.words:
            return list(ids)
        return " ".join([self.words[token] for token in ids])

    def count(self, prompt: Prompt) -> int | None:
        """Tokens that the server will count in any prompt. None: no tokenizer."""
        if isinstance(prompt, str):
            return None if self.count_text is None else self.count_text(prompt) + self.overhead
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if not messages:
            return len(prompt) + self.overhead
        rendered = self.count_chat(messages) if self.count_chat else None
        if rendered is not None or self.count_text is None:
            return rendered
        # Without the template: the overhead of a conversation of one message, for each.
        contents = [str(message.get("content", "")) for message in messages]
        return sum(map(self.count_text, contents)) + self.template * len(messages)
