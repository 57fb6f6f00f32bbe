"""ShareGPT conversations: the first human turn is the prompt; the length of the answer to it is the
output length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from penstock.core import PenstockError
from penstock_lab.bench.datasets.files import FileOptions, opened
from penstock_lab.bench.prompts import PromptMaker
from penstock_lab.bench.request import Request

LEAST = 4
MOST_PROMPT = 1024
MOST_TOTAL = 2048
HUMAN = {"human", "user"}
ANSWERS = {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}
EXPECTED = (
    'a list of {"conversations": [{"from": "human", "value": text}, {"from": "gpt", '
    '"value": text}, ...]}'
)

Pair = tuple[str, str]


def sharegpt_requests(options: FileOptions, maker: PromptMaker, seed: int) -> Sequence[Request]:
    """Requests from the file. A conversation is skipped if its prompt has fewer than 4 or more than
    1024 tokens, if its answer has fewer than 4 tokens (unless `output_len` is set), or if both have
    more than 2048 tokens in total.
    """
    pairs = options.shuffled(list(_pairs(options.path)), seed)
    return options.take(_fitting(pairs, options, maker), seed)


def _fitting(pairs: Sequence[Pair], options: FileOptions, maker: PromptMaker) -> Iterator[Request]:
    for prompt, answer in pairs:
        counted = _counted(maker, prompt)
        asked = counted - maker.template
        output = options.output_len or _counted(maker, answer) - maker.overhead
        fits = LEAST <= asked <= MOST_PROMPT and asked + output <= MOST_TOTAL
        if fits and (options.output_len or output >= LEAST):
            yield Request(prompt, counted, output)


def _counted(maker: PromptMaker, text: str) -> int:
    count = maker.count(text)
    if count is None:
        raise PenstockError(
            f"ShareGPT prompts are chosen by their length, which {maker.name} cannot tell: name "
            "the model's tokenizer with --tokenizer"
        )
    return count


def _pairs(path: Path) -> Iterator[Pair]:
    with opened(path) as file:
        text = file.read()
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise PenstockError(
            f"{path}, line {error.lineno}: {error.msg}, expected {EXPECTED}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PenstockError(f"{path}: {error}, expected {EXPECTED}") from error
    if not isinstance(entries, list):
        raise PenstockError(f"{path}: the file is no list, expected {EXPECTED}")
    for number, entry in enumerate(entries):
        pair = _first_pair(_turns(path, number, entry))
        if pair is not None:
            yield pair


def _turns(path: Path, number: int, entry: object) -> list[tuple[str, str]]:
    """(role, text) for each turn. Empty if the entry has no conversation; the published file has
    such entries.
    """
    turns = entry.get("conversations", []) if isinstance(entry, Mapping) else None
    if not isinstance(turns, list):
        raise PenstockError(
            f"{path}, entry {number} of the list (from 0): no conversation, expected {EXPECTED}"
        )
    read = []
    for turn in turns:
        role, text = (
            (turn.get("from"), turn.get("value")) if isinstance(turn, Mapping) else (None, None)
        )
        if not isinstance(role, str) or not isinstance(text, str):
            raise PenstockError(
                f"{path}, entry {number} of the list (from 0): a turn is {turn!r:.80}, expected "
                f"{EXPECTED}"
            )
        read.append((role, text))
    return read


def _first_pair(turns: Sequence[tuple[str, str]]) -> Pair | None:
    for (asker, prompt), (answerer, answer) in pairwise(turns):
        if asker in HUMAN and answerer in ANSWERS:
            return prompt, answer
    return None
