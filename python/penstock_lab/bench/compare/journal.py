"""Files of a comparison: one for each run, and `comparison.json` about all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core import InvalidValueError
from penstock_lab.bench.compare.summary import COMPARISON_FILE, Result, Workload


class Journal:
    """Writes after each run, so that results survive an interruption."""

    def __init__(
        self, directory: Path, facts: Mapping[str, Any], hidden: Mapping[str, str]
    ) -> None:
        """`facts` are the keys of comparison.json that are known at the start. `hidden` maps paths
        of local directories to the text that replaces them in the files.

        Raises:
            InvalidValueError: the directory already has result files.
        """
        if any(directory.glob("*.json")):
            raise InvalidValueError(
                "--result-dir", str(directory), "a directory without result files"
            )
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.troubles: list[str] = []
        self.results: list[Result] = []
        self._servers: dict[str, Mapping[str, object]] = {}
        self._facts = facts
        self._hidden = sorted(hidden.items(), key=lambda item: -len(item[0]))

    def server(self, name: str, facts: Mapping[str, object]) -> None:
        """Record the facts about a server (version, command and others) once it is ready."""
        self._servers[name] = facts
        self._write_comparison()

    def run(self, server: str, workload: Workload, repeat: int, result: Result) -> Path:
        """Write the result of a run; returns its file."""
        self.results.append(result)
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{server}-{workload.label}-{repeat}")
        path = self.directory / f"{stem}.json"
        self._write(path, _rounded({**result, "generated_texts": []}))
        self._write_comparison()
        return path

    def trouble(self, line: str) -> None:
        """Record a problem that affects the numbers, for readers of the report."""
        self.troubles.append(self._hide(line))
        self._write_comparison()

    def comparison(self) -> dict[str, Any]:
        """Content of comparison.json."""
        return {**self._facts, "servers": self._servers, "troubles": self.troubles}

    def _write_comparison(self) -> None:
        self._write(self.directory / COMPARISON_FILE, self.comparison())

    def _write(self, path: Path, value: Mapping[str, Any]) -> None:
        # Write atomically, for concurrent readers and Ctrl-C.
        part = path.with_suffix(".part")
        part.write_text(self._hide(json.dumps(value, allow_nan=False)) + "\n")
        part.replace(path)

    def _hide(self, text: str) -> str:
        for path, name in self._hidden:
            text = text.replace(path, name)
        return text


def _rounded(value: object) -> Any:
    """A JSON value with its numbers rounded to six decimals, to keep files small. For times in
    seconds this is a microsecond.
    """
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return (
        {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value
    )
