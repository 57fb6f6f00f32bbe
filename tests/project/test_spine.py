"""The table of ARCHITECTURE.md of the files that a streamed chat request passes."""

import re

import pytest

from tests.project import tree

ROW = re.compile(r"^\| \d+ \| `([^`]+)` \| ([\d,]+) \|", re.MULTILINE)
MOST_FILES = 18
MOST_LINES = 2_500
TOLERANCE = 0.1


def spine() -> dict[str, int]:
    """Lines by file, as the table has them."""
    text = (tree.REPOSITORY / "ARCHITECTURE.md").read_text()
    section = text.split("## The spine of a request")[1].split("\n## ")[0]
    return {name: int(lines.replace(",", "")) for name, lines in ROW.findall(section)}


def test_the_table_of_the_spine_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    table = spine()
    lines = {name: len((tree.REPOSITORY / name).read_text().splitlines()) for name in table}
    wrong = {
        name: count
        for name, count in lines.items()
        if abs(count - table[name]) > max(10, TOLERANCE * count)
    }
    assert not wrong, f"ARCHITECTURE.md has other numbers: {wrong}"
    with capsys.disabled():
        print(f"\nspine: {len(table)} files, {sum(lines.values()):,} lines")
    assert len(table) <= MOST_FILES
    assert sum(lines.values()) < MOST_LINES
