"""Converts token ids to prompts, and predicts how many prompt tokens a server will count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock_lab.bench.request import Message, Prompt

CountText = Callable[[str], int]
CountChat = Callable[[Sequence[Message]], int | None]


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Builds prompts for which the server counts exactly `len(ids) + overhead` tokens."""

    name: str
    """Source of the vocabulary, for messages and results."""
    vocabulary: Sequence[int]
    """Ids that prompts may contain."""
    words: Mapping[int, str] = field(default_factory=dict)
    """Text of each id. Both `word` at the start of a text and ` word` after another word must be
    one token. Empty: prompts are sent as ids.
    """
    special: int = 0
    """Number of special tokens that the server adds, such as BOS. A requested prompt length
    includes them, as in vLLM's benchmark.
    """
    template: int = 0
    """Number of tokens that the chat template adds. A requested prompt length does not include
    them, as in vLLM's benchmark.
    """
    count_text: CountText | None = None
    """Function for the number of tokens of a text without special tokens; None if no tokenizer is
    available.
    """
    count_chat: CountChat | None = None
    """Function for the number of tokens of a conversation in the chat template. Its result is None
    if the number is unknown.
    """

    @property
    def overhead(self) -> int:
        return self.special + self.template

    def prompt(self, ids: Sequence[int]) -> str | list[int]:
        """The prompt: text (the user's message for a chat endpoint) or ids."""
        if not self.words:
            return list(ids)
        return " ".join([self.words[token] for token in ids])

    def count(self, prompt: Prompt) -> int | None:
        """Number of tokens that the server will count; None without a tokenizer."""
        if isinstance(prompt, str):
            return None if self.count_text is None else self.count_text(prompt) + self.overhead
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if not messages:
            return len(prompt) + self.overhead
        rendered = self.count_chat(messages) if self.count_chat else None
        if rendered is not None or self.count_text is None:
            return rendered
        # Without the chat template, assume that each message has the overhead of a single one.
        contents = [str(message.get("content", "")) for message in messages]
        return sum(map(self.count_text, contents)) + self.template * len(messages)
