"""Items of a part of a GPU run: their results, failures, and items that did not run."""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAILURES = "failures"
LEFT_OUT = "left out"
"""Title of the rows for items that were left out for lack of time. A run with such an item counts
as failed.
"""
ABSENT = "not on this machine"
"""Title of the rows for items that this machine cannot run, for example with one GPU. They are no
failures.
"""


class Results:
    """Values and table rows by title. Each change is written to the file; only the first rank has
    one.
    """

    def __init__(self, path: Path | None, end: float) -> None:
        """`end`: when the part must end, as time of the monotonic clock, which all processes of a
        machine share.
        """
        self._path = path
        self._end = end
        self._found: dict[str, Any] = {}

    def note(self, title: str, value: Any) -> None:
        self._found[title] = value
        if self._path is None:
            return
        write(self._path, json.dumps(self._found, indent=1))
        print(title, value[-1] if isinstance(value, list) else value, flush=True)

    def row(self, title: str, **columns: Any) -> None:
        self.note(title, [*self._found.get(title, []), columns])

    def rows(self, title: str) -> list[dict[str, Any]]:
        return list(self._found.get(title, []))

    def value(self, title: str, default: Any = None) -> Any:
        return self._found.get(title, default)

    @property
    def left(self) -> float:
        """Seconds left until the part must end."""
        return self._end - time.monotonic()

    def fail(self, item: str, error: str) -> None:
        """Record that an item failed, by an exception or by a wrong result."""
        self.row(FAILURES, item=item, error=error[:300])

    def take_in(self, found: dict[str, Any]) -> None:
        """Merge the rows and values of another process."""
        for title, value in found.items():
            rows = isinstance(value, list)
            self.note(title, [*self._found.get(title, []), *value] if rows else value)

    def item(self, name: str, work: Callable[[], object], least: float = 2.0) -> None:
        """Run one item of the part if at least `least` seconds are left. If it fails or is left
        out, the other items still run.
        """
        left = self.left
        if left < least:
            self.row(LEFT_OUT, item=name, reason=f"{left:.0f} s were left, {least:.0f} are needed")
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - of any kind: the other items are measured
            traceback.print_exc()
            self.fail(name, f"{type(error).__name__}: {error}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that run.py passes to the process of a part."""
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("end", type=float, help="time of the monotonic clock")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--short", action="store_true", help="the most telling items alone")
    parser.add_argument("--wheel", type=Path, help="unpacked, for the product's server")


def problems(results: dict[str, Any]) -> str:
    """Text with the numbers of items that failed or were left out; empty if all ran."""
    counts = (
        (len(results.get(FAILURES, [])), "failed"),
        (len(results.get(LEFT_OUT, [])), LEFT_OUT),
    )
    return ", ".join(f"{count} items {what}" for count, what in counts if count)


def write(path: Path, text: str) -> None:
    """Replace a file atomically, because the process may be killed while it writes."""
    written = path.with_name(f"{path.name}.part")
    written.write_text(text)
    written.replace(path)
