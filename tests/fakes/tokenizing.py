"""A server that counts tokens, behind the benchmark's `Fetch`, and a maker of prompts without any
server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from penstock_lab.bench.prompts import Reply
from penstock_lab.bench.prompts.server import as_messages


def tokens_of(text: str, split: frozenset[str] = frozenset()) -> list[int]:
    """A token for each word, another one at the beginning than after a space; two for words in
    `split`.
    """
    tokens = []
    for place, word in enumerate(text.split(" ")):
        parts = [word[:1], word[1:]] if word in split else [word]
        tokens += [
            crc32(f"{'' if place == 0 and n == 0 else ' '}{part}".encode())
            for n, part in enumerate(parts)
        ]
    return tokens


@dataclass
class TokenizingServer:
    """Answers /tokenize in the forms that it is given, and counts prompts of one-token requests."""

    form: str = "none"
    """`vllm`, `llama.cpp` or `none`."""
    usage: bool = True
    bos: int = 0
    template: int = 7
    split: frozenset[str] = frozenset()
    asked: list[str] = field(default_factory=list)

    def __call__(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Reply:
        assert method == "POST"
        assert body is not None
        self.asked.append(path)
        if path == "/tokenize":
            return self._tokenize(body)
        if "max_tokens" in body and body["max_tokens"] != 1:
            return Reply(400, "more than a token")
        counted = (
            self.chat_tokens(body["messages"])
            if "messages" in body
            else self.prompt_tokens(body["prompt"])
        )
        answer = {"choices": [{"finish_reason": "length"}]}
        return Reply(200, answer | ({"usage": {"prompt_tokens": counted}} if self.usage else {}))

    def prompt_tokens(self, prompt: object) -> int:
        """What usage would say of a completion's prompt."""
        return (
            self.bos + len(tokens_of(prompt, self.split))
            if isinstance(prompt, str)
            else len(prompt)
        )

    def chat_tokens(self, messages: Sequence[Mapping[str, object]]) -> int:
        return sum(self.template + len(tokens_of(str(m["content"]), self.split)) for m in messages)

    def _tokenize(self, body: Mapping[str, object]) -> Reply:
        if self.form == "none":
            return Reply(404, {"error": "Not Found"})
        if self.form == "llama.cpp":
            text, special = body.get("content"), body.get("add_special", False)
            return Reply(200, {"tokens": self._ids(text, special) if text else []})
        if "messages" in body:
            return Reply(200, {"tokens": list(range(self.chat_tokens(body["messages"])))})
        if "prompt" not in body:
            return Reply(400, {"error": "prompt is required"})
        tokens = self._ids(body["prompt"], body.get("add_special_tokens", True))
        return Reply(200, {"count": len(tokens), "tokens": tokens})

    def _ids(self, text: str, special: object) -> list[int]:
        return [1] * (self.bos if special else 0) + tokens_of(text, self.split)


@dataclass(frozen=True)
class PlainMaker:
    """Prompts that are their ids; a text has a token for each word."""

    size: int = 1000
    special: int = 0
    template: int = 0
    counts: bool = True
    name: str = "plain"

    @property
    def vocabulary(self) -> Sequence[int]:
        return range(100, 100 + self.size)

    @property
    def overhead(self) -> int:
        return self.special + self.template

    def prompt(self, ids: Sequence[int]) -> list[int]:
        return list(ids)

    def count(self, prompt: object) -> int | None:
        if not self.counts:
            return None
        words = [prompt] if isinstance(prompt, str) else [m["content"] for m in as_messages(prompt)]
        return sum(len(text.split()) for text in words) + self.overhead
