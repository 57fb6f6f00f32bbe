"""Collects the facts about a run (versions, machine, command), and writes result files."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock_lab.bench.compare.machine import machine
from penstock_lab.bench.compare.server_under_test import first_line_with_digit

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DEFAULT_PEERS = Path("~/.cache/peers")


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the flags that all scripts have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default="smollm2", help="alias or path; default: %(default)s")
    made.add_argument("--peers", type=Path, default=DEFAULT_PEERS, help="default: %(default)s")
    made.add_argument(
        "--results", type=Path, default=RESULTS, help="directory; default: %(default)s"
    )
    return made


def gather(peers: Path, names: Iterable[str], argv: Sequence[str]) -> dict[str, Any]:
    """Facts about a run: versions, commit, machine and command line. `names` are the other systems
    whose versions are added.
    """
    known = {
        "vllm": ["env", "VLLM_NO_USAGE_STATS=1", str(peers / "vllm/bin/vllm"), "--version"],
        "aiperf": [str(peers / "aiperf/bin/aiperf"), "--version"],
        "llama.cpp": [str(peers / "llama.cpp/build/bin/llama-server"), "--version"],
    }
    versions = {name: first_line_with_digit(known[name]) for name in names if name in known}
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "command": shown(["python", *argv]),
        "versions": {"penstock": __version__, **versions},
        "commit": _git("describe", "--always", "--dirty=+", "--exclude=*"),
        **machine(),
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def shown(command: Sequence[str]) -> str:
    """A command as text without local directories; other files appear only with their names."""
    text = " ".join(command)
    hidden = {
        str(DEFAULT_PEERS.expanduser()): "$PEERS_DIR",
        f"{ROOT}/": "",
        str(Path.home()): "~",
    }
    for path, name in hidden.items():
        text = text.replace(path, name)
    # Hide the names of temporary directories.
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/[\w-]+", "$TMPDIR", text)
    text = re.sub(r"(?<![\w$~.:/])(?:/[\w.-]+)+/([\w.-]+)", r"\1", text)
    return re.sub(r"(127\.0\.0\.1:|--port )\d+", r"\1PORT", text)


def fact_lines(facts: Mapping[str, Any]) -> list[str]:
    """The facts as lines of a Markdown list."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return [
        f"* {facts['date']}, commit {facts['commit']}: `{facts['command']}`",
        f"* {versions}",
        f"* {facts['processor']}, memory {facts['memory']}, kernel {facts['kernel']}",
    ]


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table, whose first column has text and whose other columns have
    numbers.
    """
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def middle(results: Iterable[Mapping[str, Any]], key: str) -> float:
    """Median of a statistic over the repeats that have it; NaN if none has."""
    values = [float(result[key]) for result in results if result.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def stem(name: str, directory: Path = RESULTS) -> Path:
    """Path of today's result files, without a suffix."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}-{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"


def write(path: Path, lines: Sequence[str], data: Mapping[str, Any]) -> None:
    """Write the result files PATH.md and PATH.json."""
    path.with_name(path.name + ".md").write_text("\n".join(lines) + "\n")
    path.with_name(path.name + ".json").write_text(json.dumps(data, indent=1) + "\n")
    print(f"wrote {os.path.relpath(path)}.md and .json")
