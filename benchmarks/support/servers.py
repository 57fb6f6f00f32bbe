"""Starts a Penstock server as a process tree on selected CPUs."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from penstock.config.machine import free_port
from penstock_lab.bench.compare.processes import ProcessTree, uninterrupted
from penstock_lab.bench.compare.server_under_test import answers

HERE = (sys.executable, "-P", "-m", "penstock")
"""Command of the Penstock that these scripts import."""
PATIENCE_S = 120.0
_SAMPLE = re.compile(r"^([\w:]+)\{[^}]*\} ([-+.\deE]+)$", re.MULTILINE)


class Server:
    """Context in which `penstock WORDS --port FREE` runs, on `cpus` (all CPUs if empty)."""

    def __init__(self, words: Sequence[str], cpus: Collection[int], log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.words = [*words, "--port", str(self.port)]
        self._cpus = cpus or os.sched_getaffinity(0)
        self._log = log

    def __enter__(self) -> Server:
        """Start the server and wait until it is ready.

        Raises:
            RuntimeError: it ended, or was not ready within two minutes.
        """
        with uninterrupted():
            self.tree = ProcessTree([*HERE, *self.words], {}, self._log, self._cpus)
        deadline = time.monotonic() + PATIENCE_S
        while not answers(f"{self.url}/health"):
            if not self.tree.alive() or time.monotonic() > deadline:
                self.tree.end()
                raise RuntimeError(
                    f"penstock {' '.join(self.words)} is not "
                    f"ready:\n{self._log.read_text(errors='replace')}"
                )
            time.sleep(0.02)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tree.end()

    def counters(self) -> dict[str, float]:
        """The values in /metrics by name, summed over labels."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{self.url}/metrics", timeout=PATIENCE_S) as answer:
            return counters(answer.read().decode())


def counters(page: str) -> dict[str, float]:
    """The values in a page of Prometheus' text format by name, summed over labels."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(page):
        found[name] = found.get(name, 0.0) + float(value)
    return found


MODEL = "modelled"
"""Name of the model in requests to a simulated engine."""


def simulation(
    profile: Mapping[str, object] | str, model: str, cpus: Collection[int], directory: Path
) -> Server:
    """A server of `penstock sim` with the tokenizer of `model`. `profile` is the name of a preset,
    or a profile.
    """
    named = profile if isinstance(profile, str) else str(directory / "profile.json")
    if not isinstance(profile, str):
        Path(named).write_text(json.dumps(profile))
    words = ["sim", "--profile", named, "--tokenizer", model, "--served-model-name", MODEL]
    return Server(words, cpus, directory / "sim.log")
