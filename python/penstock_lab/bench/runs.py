"""Code for commands that make many runs, such as `bench sweep`: flags, one run, and the directory
of result files.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.core import PenstockError
from penstock_lab.bench import flags, progress, result
from penstock_lab.bench.measure import measure, parse_workload
from penstock_lab.bench.result import Result
from penstock_lab.bench.target import Target

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class Measure(Protocol):
    def __call__(self, words: Sequence[str], *, seed: int, tags: Mapping[str, object]) -> Result:
        """Measure like `bench serve` with `words`. After Ctrl-C the result is partial."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add flags for server, prompts and sampling as in `bench serve`, the seed, and the result
    directory.
    """
    _add_shared(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run (default: 0)")
    group = parser.add_argument_group("results")
    group.add_argument(
        "--result-dir",
        type=Path,
        metavar="DIR",
        help="keep a detailed file of each run; `penstock bench report DIR` draws them",
    )
    group.add_argument(
        "--label", default="", help="name of the server in the results; default: its address"
    )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    flags.add_target(parser)
    flags.add_prompts(parser)
    flags.add_sampling(parser)
    flags.add_display(parser)


def add_fields(parsed: argparse.Namespace, fields: Mapping[str, object]) -> None:
    """Add fields to the JSON body of every request. --extra-body overrides them."""
    parsed.extra_body = {**fields, **parsed.extra_body}


def measure_at(target: Target, parsed: argparse.Namespace, command: str) -> Measure:
    """A function that runs `bench serve` against `target` with the shared flags in `parsed`."""
    scratch = argparse.ArgumentParser()
    _add_shared(scratch)
    shared = {name: getattr(parsed, name) for name in vars(scratch.parse_args([]))}
    always = {
        "command": command,
        "argv": flags.redacted(parsed.argv),
        "server": parsed.label or target.base_url,
    }
    shown = progress.progress(parsed.disable_tqdm)

    def run(words: Sequence[str], *, seed: int, tags: Mapping[str, object]) -> Result:
        wanted = parse_workload(["serve", *words])
        vars(wanted).update(shared, label=parsed.label or None)
        if not parsed.disable_tqdm:
            print(f"{tags['workload']}, {tags['axis']} {tags['point']:g}:", file=sys.stderr)
        return measure(wanted, target, seed=seed, tags={**always, **tags}, progress=shown)

    return run


class Keeper:
    """Writes each result to its own file if `directory` is set, and records whether Ctrl-C ended
    the runs.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.interrupted = False
        self._kept = 0

    def prepare(self) -> None:
        """Create the directory before the first measurement. Raises PenstockError if that fails."""
        if self.directory is None:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PenstockError(f"cannot make {self.directory}: {error.strerror}") from error

    def keep(self, measured: Result) -> None:
        """Write a result without the generated texts. Raises PenstockError if that fails."""
        if self.directory is not None:
            result.write({**measured, "generated_texts": []}, self.directory / file_name(measured))
            self._kept += 1

    def take(self, measured: Iterable[Result]) -> Iterator[Result]:
        """Write and yield each result. Sets `interrupted` and ends after Ctrl-C."""
        try:
            for one in measured:
                self.keep(one)
                self.interrupted = is_partial(one)
                yield one
        except KeyboardInterrupt:
            self.interrupted = True

    def announce(self) -> None:
        """Print the directory and the number of results."""
        if self._kept:
            print(
                f"{self._kept} results in {self.directory}: penstock bench report {self.directory}"
            )


def file_name(measured: Result) -> str:
    """File name from the keys that a report groups by. Other characters become `-`."""
    tags = measured["penstock"]
    axis = "" if tags["axis"] is None else f"{tags['axis']}-{tags['point']:g}"
    parts = [tags["command"], tags["server"], tags["workload"], axis, f"repeat-{tags['repeat']}"]
    return re.sub(r"[^\w.+-]+", "-", "_".join(str(part) for part in parts if part)) + ".json"


def is_partial(measured: Mapping[str, Any]) -> bool:
    return bool(measured["penstock"]["partial"])


def cached_tokens(measured: Mapping[str, Any]) -> int:
    """Prompt tokens that the server reports as cached."""
    return int(measured["penstock"]["usage"]["cached_tokens"])
