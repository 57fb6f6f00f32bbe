"""Workloads of a comparison: `NAME: serve ...`, `NAME: trace FILE ...` or `NAME: offline ...`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.compare.summary import Workload

AXES = {"time_scale": "time_scale", "request_rate": "rate", "max_concurrency": "concurrency"}
"""Arguments in which workloads of the same name may differ, each with its axis name in reports."""

Parse = Callable[[Sequence[str]], argparse.Namespace]


@dataclass(frozen=True, slots=True)
class Planned:
    """A workload, and the command-line words that define it, raw and parsed."""

    workload: Workload
    words: Sequence[str]
    parsed: argparse.Namespace


def read_lines(path: Path) -> list[str]:
    """Workloads in a file, one on each line. `#` starts a comment.

    Raises:
        PenstockError: the file is unreadable.
    """
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise PenstockError(f"workloads {path}: {error}") from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def plan(texts: Iterable[str], only: Sequence[str], parse: Parse) -> list[Planned]:
    """The workloads of `texts`, restricted to the names in `only` if there are any.

    Several may share a name if they differ in one of `AXES`: they are the points of one curve.

    Raises:
        InvalidValueError: a text is invalid, a name is unknown, or two workloads are not distinct.
    """
    split = [_split(text) for text in texts]
    names = list(dict.fromkeys(name for name, _ in split))
    if unknown := [name for name in only if name not in names]:
        raise InvalidValueError("--only", ",".join(unknown), f"names among {', '.join(names)}")
    chosen = [(name, words, parse(words)) for name, words in split if not only or name in only]
    if not chosen:
        raise InvalidValueError(
            "--workload", "", "at least one workload, here or in --workloads FILE"
        )
    axes = {name: _axis(name, [p for other, _, p in chosen if other == name]) for name in names}
    return [
        Planned(_workload(name, axes[name], parsed), words, parsed)
        for name, words, parsed in chosen
    ]


def _split(text: str) -> tuple[str, list[str]]:
    name, colon, rest = text.partition(":")
    try:
        words = shlex.split(rest, comments=True)
    except ValueError as error:
        raise InvalidValueError(
            "--workload", text, f"words that a shell could read ({error})"
        ) from error
    if not colon or not name.strip() or not words:
        raise InvalidValueError(
            "--workload", text, "'NAME: serve ...', 'NAME: trace FILE ...' or 'NAME: offline ...'"
        )
    return name.strip(), words


def _axis(name: str, group: Sequence[argparse.Namespace]) -> str | None:
    """The argument in which workloads of the same name differ; None for a single workload."""
    if len(group) < 2:
        return None
    for argument in AXES:
        points = [getattr(parsed, argument, None) for parsed in group]
        if None not in points and len(set(points)) == len(points):
            return argument
    differ = ", ".join(f"--{argument.replace('_', '-')}" for argument in AXES)
    raise InvalidValueError(
        "--workload", name, f"a name of its own, or another value of one of {differ} each time"
    )


def _workload(name: str, axis: str | None, parsed: argparse.Namespace) -> Workload:
    if axis is None:
        return Workload(name)
    return Workload(name, AXES[axis], float(getattr(parsed, axis)))
