"""Workloads from arguments and files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.compare.summary import Workload
from penstock_lab.bench.compare.workloads import plan, read_lines


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Stands for the parser of `bench serve` and `bench trace`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("file", nargs="?")
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--time-scale", type=float)
    return parser.parse_args(words)


def test_names_and_words() -> None:
    (planned,) = plan(['W1: trace "my file" --max-concurrency 8'], [], parse)
    assert planned.workload == Workload("W1")
    assert planned.words == ["trace", "my file", "--max-concurrency", "8"]
    assert planned.parsed.max_concurrency == 8


@pytest.mark.parametrize(
    ("flag", "axis"),
    [
        ("--time-scale", "time_scale"),
        ("--request-rate", "rate"),
        ("--max-concurrency", "concurrency"),
    ],
)
def test_one_name_with_several_values_is_one_curve(flag: str, axis: str) -> None:
    texts = [f"curve: trace FILE {flag} {value}" for value in (4, 1, 2)]
    found = [planned.workload for planned in plan([*texts, "other: serve"], [], parse)]
    assert found == [
        *(Workload("curve", axis, float(value)) for value in (4, 1, 2)),
        Workload("other"),
    ]
    assert found[0].label == f"curve {axis} 4"


def test_only_some() -> None:
    texts = ["W1: serve", "W2: serve", "W3: serve"]
    assert [planned.workload.name for planned in plan(texts, ["W3", "W1"], parse)] == ["W1", "W3"]


@pytest.mark.parametrize(
    ("texts", "only", "said"),
    [
        (["serve --max-concurrency 1"], [], "NAME: serve"),
        (["W1:"], [], "NAME: serve"),
        ([": serve"], [], "NAME: serve"),
        (["W1: serve 'x"], [], "a shell could read"),
        (["W1: serve", "W1: serve"], [], "a name of its own"),
        (["W1: serve --max-concurrency 1", "W1: serve"], [], "a name of its own"),
        (["W1: serve"], ["W2"], "names among W1"),
        ([], [], "at least one"),
    ],
)
def test_wrong_ones_are_named(texts: list[str], only: list[str], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        plan(texts, only, parse)


def test_a_file_has_comments_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "workloads.txt"
    path.write_text("# first\n\nW1: serve\n  W2: serve # not this\n")
    assert [p.words for p in plan(read_lines(path), [], parse)] == [["serve"], ["serve"]]
    with pytest.raises(PenstockError, match=r"none\.txt"):
        read_lines(tmp_path / "none.txt")
