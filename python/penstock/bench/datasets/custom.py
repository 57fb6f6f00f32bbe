"""Custom prompts: a JSONL file, a request in each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.datasets.files import json_lines, malformed
from penstock.bench.datasets.sampling import shuffled, take
from penstock.bench.prompts import PromptMaker
from penstock.bench.request import Message, Request
from penstock.core import InvalidValueError

EXPECTED = (
    '{"prompt": text or list of messages, "output_tokens": number} ("messages" for '
    '"prompt" '
    "does too)"
)

Row = tuple[int, str | list[Message], int]
"""Line, prompt, output tokens."""


@dataclass(frozen=True, slots=True)
class CustomOptions:
    path: Path
    num_prompts: int = 0
    """0: as many as the file has."""
    output_len: int = 256
    """-1: taken from each line (`output_tokens` or `output_len`)."""
    shuffle: bool = True
    oversample: bool = True

    def __post_init__(self) -> None:
        if self.output_len < 1 and self.output_len != -1:
            raise InvalidValueError(
                "--custom-output-len", self.output_len, "a number above 0, or -1"
            )


def custom_requests(
    options: CustomOptions, maker: PromptMaker, seed: int, chat: bool
) -> Sequence[Request]:
    """`chat`: whether the endpoint takes messages. `input_tokens` is 0 without a tokenizer."""
    rows = [_row(options, line, fields, chat) for line, fields in json_lines(options.path)]
    rows = shuffled(rows, seed, options.shuffle)
    requests = (Request(prompt, maker.count(prompt) or 0, output) for _, prompt, output in rows)
    count = options.num_prompts if options.num_prompts > 0 else max(1, len(rows))
    return take(requests, count, seed, options.oversample, options.path)


def _row(options: CustomOptions, line: int, fields: Mapping[str, object], chat: bool) -> Row:
    prompt = _prompt(options.path, line, fields.get("prompt", fields.get("messages")))
    if not isinstance(prompt, str) and not chat:
        expected = "text, because messages need --endpoint /v1/chat/completions"
        raise malformed(options.path, line, prompt, expected)
    output: object = options.output_len
    if options.output_len == -1:
        output = fields.get("output_tokens", fields.get("output_len"))
    if not isinstance(output, int) or isinstance(output, bool) or output < 1:
        expected = '"output_tokens" with a number above 0, because of --custom-output-len -1'
        raise malformed(options.path, line, output, expected)
    return line, prompt, output


def _prompt(path: Path, line: int, prompt: object) -> str | list[Message]:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_message(item) for item in prompt):
        return prompt
    raise malformed(path, line, prompt, EXPECTED)


def _is_message(item: object) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("role"), str) and "content" in item
