"""Runs a comparison. A server that fails is excluded from the remaining runs. All servers started
here are ended at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.core import PenstockError
from penstock_lab.bench.compare.journal import Journal
from penstock_lab.bench.compare.processes import uninterrupted, wait_until_quiet
from penstock_lab.bench.compare.schedule import Turn, interleaved, seed_of, sequential
from penstock_lab.bench.compare.server_under_test import ServerUnderTest
from penstock_lab.bench.compare.summary import Result
from penstock_lab.bench.compare.table import run_line
from penstock_lab.bench.compare.workloads import Planned

Measure = Callable[[argparse.Namespace, str, int, Mapping[str, object]], Result]
"""Function from a workload's arguments, base URL, seed and tags to the result of one run."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the comparison. Times are in seconds. Shares are fractions (0 to 1) of the CPU
    time of the whole machine.
    """

    order: str
    """`interleaved` or `sequential`."""
    repeats: int
    seed: int
    warm_up: Sequence[argparse.Namespace]
    """Warm-up after the start of each server, not recorded."""
    patience: float
    """Timeout in seconds for a server to become ready."""
    quiet_wait: float
    max_foreign: float
    """CPU share of other processes above which a run counts as disturbed."""
    attempts: int
    """Maximum number of times that a measurement is run if other processes disturb it."""


class Comparison:
    """Runs the workloads on all servers that have not failed; the journal records each run."""

    def __init__(
        self,
        servers: Sequence[ServerUnderTest],
        workloads: Sequence[Planned],
        rules: Rules,
        measure: Measure,
        journal: Journal,
        say: Say,
    ) -> None:
        self._servers = {server.name: server for server in servers}
        self._workloads = workloads
        self._rules = rules
        self._measure = measure
        self._journal = journal
        self._say = say

    def run(self) -> None:
        """Execute all runs.

        Raises:
            KeyboardInterrupt: after Ctrl-C; the results so far are written.
        """
        try:
            if self._rules.order == "interleaved":
                self._interleaved()
            else:
                self._sequential()
        finally:
            with uninterrupted():
                for server in self._servers.values():
                    server.end()

    def _interleaved(self) -> None:
        names = list(self._servers)
        for name in names:
            if server := self._start(name):
                server.stop()
        for turn in interleaved(names, self._workloads, self._rules.repeats):
            if server := self._servers.get(turn.server):
                server.resume()
                self._turn(server, turn)
                server.stop()

    def _sequential(self) -> None:
        turns = sequential(list(self._servers), self._workloads, self._rules.repeats)
        for name, own in groupby(turns, key=lambda turn: turn.server):
            server = self._start(name)
            for turn in own:
                if name in self._servers and server:
                    self._turn(server, turn)
            if server:
                server.end()

    def _start(self, name: str) -> ServerUnderTest | None:
        """Start and warm up a server; None if it failed and is excluded."""
        server = self._servers[name]
        wait_until_quiet(self._rules.quiet_wait, self._rules.max_foreign)
        try:
            server.start(self._rules.patience)
            for index, parsed in enumerate(self._rules.warm_up):
                _check_interrupt(self._measure(parsed, server.url, self._rules.seed + index, {}))
        except (PenstockError, OSError) as error:
            self._drop(server, str(error))
            return None
        self._say(f"{name}: ready after {server.ready_s:.2f} s")
        self._journal.server(name, server.facts())
        return server

    def _turn(self, server: ServerUnderTest, turn: Turn) -> None:
        try:
            result = self._least_disturbed(server, turn)
        except (PenstockError, OSError) as error:
            self._drop(server, server.ending() if not server.alive() else str(error))
            return
        own = result["penstock"]
        interrupted = bool(own["partial"])
        dead = not server.alive()
        # A partial run is written and counted, but excluded from statistics: if the server died,
        # some of its requests had no server.
        own["partial"] = interrupted or dead
        self._journal.run(server.name, turn.planned.workload, turn.repeat, result)
        self._say(run_line(result))
        if interrupted:
            raise KeyboardInterrupt
        if dead:
            self._drop(server, server.ending())
        elif not result["completed"]:
            example = next(iter(own.get("failure_examples") or ["no example"]))
            self._trouble(
                f"{server.name}, {turn.planned.workload.label}: no request completed: {example}"
            )

    def _least_disturbed(self, server: ServerUnderTest, turn: Turn) -> Result:
        """Measure up to `attempts` times. Returns the first run that other processes did not
        disturb, else the least disturbed one.
        """
        best: Result | None = None
        for attempt in range(self._rules.attempts):
            wait_until_quiet(self._rules.quiet_wait, self._rules.max_foreign)
            result = self._once(server, turn, attempt)
            if result["penstock"]["partial"] or not server.alive():
                return result
            if best is None or _foreign(result) < _foreign(best):
                best = result
            if _foreign(result) <= self._rules.max_foreign:
                break
        assert best is not None, "attempts are at least 1"
        return best

    def _once(self, server: ServerUnderTest, turn: Turn, attempt: int) -> Result:
        workload = turn.planned.workload
        tags = {
            "server": server.name,
            "workload": workload.name,
            "repeat": turn.repeat,
            "axis": workload.axis,
            "point": workload.point,
        }
        meter = server.meter()
        seed = seed_of(self._rules.seed, workload, turn.repeat, attempt)
        result = self._measure(turn.planned.parsed, server.url, seed, tags)
        result["penstock"]["command"] = "compare"
        if meter is not None:
            result["penstock"]["process"] = {**meter.read(), "pss_mb": server.pss_mb()}
        return result

    def _drop(self, server: ServerUnderTest, reason: str) -> None:
        del self._servers[server.name]
        with uninterrupted():
            server.end()
        self._trouble(f"{server.name} left the comparison: {reason}")

    def _trouble(self, line: str) -> None:
        self._say(line)
        self._journal.trouble(line)


def _foreign(result: Result) -> float:
    return float((result["penstock"].get("process") or {}).get("foreign_share", 0.0))


def _check_interrupt(result: Result) -> None:
    if result["penstock"]["partial"]:
        raise KeyboardInterrupt
