"""Widths of lines."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.project import tree

CODE_COLUMNS = 100
MARKDOWN_COLUMNS = 120
CODE = (".py", ".pyi", ".rs", ".sh", ".toml")

# A URL, a path or a table row has no place for a line break.
UNBREAKABLE = re.compile(r"^\W*\S+\W*$|^\s*\|")
# Files and directories whose lines are data, each with its reason.
LONG_LINES = {
    "benchmarks/results/": "as the tools wrote them",
    "crates/base/tokenizer/src/gguf/pre.rs": "patterns of the models' own files",
    "crates/base/checkpoint/tests/suite/hostile.rs": "headers byte for byte",
    "crates/base/checkpoint/tests/suite/safetensors.rs": "headers byte for byte",
}


def files(*suffixes: str) -> Iterator[tuple[str, Path]]:
    """Tracked files with one of the suffixes, by relative name."""
    return ((tree.relative(path), path) for path in tree.sources(*suffixes))


def long_lines(columns: int, *suffixes: str) -> list[str]:
    """Breakable lines over `columns`, outside files with a reason."""
    return [
        f"{name}:{number}: {len(line)}"
        for name, path in files(*suffixes)
        if not name.startswith(tuple(LONG_LINES))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > columns and not UNBREAKABLE.match(line)
    ]


def test_lines_end_at_their_column() -> None:
    assert not long_lines(CODE_COLUMNS, *CODE)
    assert not long_lines(MARKDOWN_COLUMNS, ".md")
