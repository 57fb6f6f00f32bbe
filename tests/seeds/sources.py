"""Commands and manifests of the source documents, and the rows of docs/sources.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEAD = re.compile(r"\[(\d{3}) row (\d+) (runs|refused|other)\] ?(.*)")
SECTION = re.compile(r"## (\d{3}) ")
SEPARATOR = re.compile(r"(?<!\\)\|")
QUOTED = re.compile(r"`([^`]+)`")
OF_PENSTOCK = re.compile(r"`penstock ([^`]+)`")
DOCUMENT = re.compile(r"^---\n", re.MULTILINE)
ROW_OF_DOCUMENT = re.compile(r"# row (\d+)\b")


@dataclass(frozen=True, slots=True)
class Command:
    source: str
    row: int
    outcome: str
    reason: str
    environ: dict[str, str]
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.source}-{self.row}-{'-'.join(Path(word).name for word in self.words[:3])}"


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    source: str
    verdict: str
    """Up to the first colon or semicolon."""
    reason: str
    commands: tuple[str, ...]
    """Those of Penstock, without its name."""
    tests: tuple[str, ...]


def commands() -> Iterator[Command]:
    head: re.Match[str] | None = None
    for line in (HERE / "commands.txt").read_text(encoding="utf-8").splitlines():
        if found := HEAD.fullmatch(line):
            head = found
        elif line and not line.startswith("#"):
            assert head is not None, line
            words, environ = shlex.split(line), {}
            while re.match(r"[A-Z_0-9]+=", words[0]):
                name, _, environ[name] = words.pop(0).partition("=")
            yield Command(head[1], int(head[2]), head[3], head[4], environ, tuple(words))


def rows() -> dict[int, Row]:
    """By their numbers."""
    found: dict[int, Row] = {}
    source = ""
    for line in (ROOT / "docs/sources.md").read_text(encoding="utf-8").splitlines():
        if section := SECTION.match(line):
            source = section[1]
        cells = [cell.strip() for cell in SEPARATOR.split(line)[1:-1]]
        if not source or not cells or not cells[0].isdigit():
            continue
        number, _, here, verdict, tests = cells
        word, _, reason = re.sub(r"[:;] ", "\n", verdict, count=1).partition("\n")
        own = tuple(OF_PENSTOCK.findall(here))
        assert int(number) not in found, number
        shown = tuple(QUOTED.findall(tests))
        found[int(number)] = Row(int(number), source, word, reason, own, shown)
    return found


def manifests() -> Iterator[tuple[Path, int, str]]:
    """File, row and text of each document of the sources' YAML files."""
    for path in sorted(HERE.glob("source-*.yaml")):
        for text in DOCUMENT.split(path.read_text(encoding="utf-8")):
            row = ROW_OF_DOCUMENT.search(text)
            assert row is not None, f"{path.name}: no row of docs/sources.md above {text[:60]!r}"
            yield path, int(row[1]), text
