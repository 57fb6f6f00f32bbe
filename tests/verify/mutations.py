"""Mutations of a text, as by a broken pipe, another locale or a new version of a tool."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Mutation = Callable[[random.Random, str], str]
WORD = re.compile(r"\S+")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
UNITS = {"GB/s": "Gb/s", "GT/s": "MT/s", "Gb/sec": "GB/s", "bytes": "kB", "%": ""}


def on_a_line(change: Callable[[random.Random, str], str]) -> Mutation:
    def mutate(chance: random.Random, text: str) -> str:
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        lines[at] = change(chance, lines[at])
        return "\n".join(lines)

    return mutate


def words_changed(change: Callable[[random.Random, list[str]], None]) -> Mutation:
    def mutate(chance: random.Random, line: str) -> str:
        words = WORD.findall(line)
        gaps = WORD.split(line)
        if not words:
            return line
        change(chance, words)
        gaps += [" "] * (len(words) + 1 - len(gaps))
        return "".join(a + b for a, b in zip(gaps, [*words, ""], strict=False))

    return on_a_line(mutate)


def _delete(chance: random.Random, words: list[str]) -> None:
    del words[chance.randrange(len(words))]


def _duplicate(chance: random.Random, words: list[str]) -> None:
    words.insert(0, chance.choice(words))


def _swap(chance: random.Random, words: list[str]) -> None:
    a, b = chance.randrange(len(words)), chance.randrange(len(words))
    words[a], words[b] = words[b], words[a]


def _number(replacement: Callable[[str], str]) -> Mutation:
    def change(chance: random.Random, line: str) -> str:
        numbers = list(NUMBER.finditer(line))
        if not numbers:
            return line
        at = chance.choice(numbers)
        return line[: at.start()] + replacement(at[0]) + line[at.end() :]

    return on_a_line(change)


def _unit(chance: random.Random, line: str) -> str:
    found = [unit for unit in UNITS if unit in line]
    unit = chance.choice(found) if found else ""
    return line.replace(unit, UNITS[unit], 1) if unit else line


def _cut(chance: random.Random, line: str) -> str:
    return line[: chance.randrange(len(line) + 1)]


def _lines(change: Callable[[random.Random, list[str]], None]) -> Mutation:
    def mutate(chance: random.Random, text: str) -> str:
        lines = text.split("\n")
        change(chance, lines)
        return "\n".join(lines)

    return mutate


MUTATIONS: dict[str, Mutation] = {
    "delete a line": _lines(lambda chance, lines: lines.__delitem__(chance.randrange(len(lines)))),
    "duplicate a line": _lines(lambda chance, lines: lines.insert(0, chance.choice(lines))),
    "delete a field": words_changed(_delete),
    "duplicate a field": words_changed(_duplicate),
    "swap fields": words_changed(_swap),
    "cut a line": on_a_line(_cut),
    "end the text": lambda chance, text: text[: chance.randrange(len(text) + 1)],
    "change a unit": on_a_line(_unit),
    "NUL": on_a_line(lambda chance, line: line[: len(line) // 2] + "\0" + line[len(line) // 2 :]),
    "exponent": _number(lambda digits: "1e+05"),
    "decimal comma": _number(lambda digits: f"{digits.replace('.', ',')},5"),
    "CRLF": lambda chance, text: text.replace("\n", "\r\n"),
    "escape sequence": on_a_line(lambda chance, line: f"\x1b[4m{line}\x1b[0m"),
}
