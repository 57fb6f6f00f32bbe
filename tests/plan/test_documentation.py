"""The examples of docs/plan.md, run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.main import main

DOCUMENT = Path(__file__).parents[2] / "docs/plan.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
COMMANDS = [block for kind, block in BLOCKS if not kind]
EXAMPLES = [line for block in COMMANDS for line in block.replace("\\\n", "").splitlines()]
ANSWERS = [block[2:].split("\n", 1) for kind, block in BLOCKS if kind == "text"]
"""Pairs of a command and the beginning of its output."""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
    assert all(line.startswith("penstock plan ") for line in EXAMPLES)


def cost(line: str) -> tuple[pytest.MarkDecorator, ...]:
    """Measurements of the real model take minutes; test_profile.py has one of a tiny model."""
    return (pytest.mark.slow,) if "--measure" in line else ()


@pytest.mark.parametrize("line", [pytest.param(line, marks=cost(line)) for line in EXAMPLES])
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


@pytest.mark.parametrize(("line", "answer"), ANSWERS)
def test_an_answer_begins_as_it_stands_there(
    line: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(line)[1:]) == (0 if answer.startswith("Fits: ") else 1)
    assert capsys.readouterr().out.startswith(answer)


def test_there_are_answers() -> None:
    assert {answer.split(":")[0] for _, answer in ANSWERS} == {"Fits", "Does not fit"}
