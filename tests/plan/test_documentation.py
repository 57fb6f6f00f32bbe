"""The examples of docs/plan.md, run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.main import main

DOCUMENT = Path(__file__).parents[2] / "docs/plan.md"
BLOCKS = re.findall(r"^```\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines()]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
    assert all(line.startswith("penstock plan ") for line in EXAMPLES)


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_runs(
    line: str,
    model_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    if words[1] == "smollm2":
        words[1] = str(model_file)
    assert main(words) == 0
