"""Custom prompts: a JSONL file with one request on each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.core import InvalidValueError
from penstock_lab.bench.datasets.files import FileOptions, json_lines, malformed
from penstock_lab.bench.prompts import PromptMaker
from penstock_lab.bench.request import Message, Request

EXPECTED = (
    '{"prompt": text or list of messages, "output_tokens": number} ("messages" for "prompt" '
    "does too)"
)

Row = tuple[int, str | list[Message], int]
"""Line number, prompt, number of output tokens."""


def custom_requests(
    options: FileOptions, maker: PromptMaker, seed: int, chat: bool
) -> Sequence[Request]:
    """Requests from the file. `chat`: whether the endpoint takes messages. Without a tokenizer,
    `Request.input_tokens` is 0. Without `options.output_len`, each line must give its own length
    (`output_tokens` or `output_len`).
    """
    if options.output_len is not None and options.output_len < 1:
        raise InvalidValueError("--custom-output-len", options.output_len, "at least 1, or -1")
    rows = [_row(options, line, fields, chat) for line, fields in json_lines(options.path)]
    rows = options.shuffled(rows, seed)
    requests = (Request(prompt, maker.count(prompt) or 0, output) for _, prompt, output in rows)
    return options.take(requests, seed)


def _row(options: FileOptions, line: int, fields: Mapping[str, object], chat: bool) -> Row:
    prompt = _prompt(options.path, line, fields.get("prompt", fields.get("messages")))
    if not isinstance(prompt, str) and not chat:
        expected = "text, because messages need --endpoint /v1/chat/completions"
        raise malformed(options.path, line, prompt, expected)
    output: object = options.output_len
    if options.output_len is None:
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
