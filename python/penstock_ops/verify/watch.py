"""`penstock verify --watch`: repeats the checks that do not disturb a server."""

from __future__ import annotations

import argparse
import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.verify.changes import by_device, changes, retained
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import SEVERITY, Status
from penstock_ops.verify.judging import findings_of, sources_of
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.reports.escaping import escaped
from penstock_ops.verify.reports.exposition import SUFFIX, exposition, replace_file
from penstock_ops.verify.reports.text import counted
from penstock_ops.verify.sources import Growth, Source, collect
from penstock_ops.verify.verdict import EXIT_STATUS, Outcome, Verdict, verdict

LEAST_SECONDS, MOST_SECONDS = 5.0, 3600.0
"""Of the pause between two passes. A pass reads for one to two seconds."""
ONE_RUN_FLAGS = ("hosts", "json", "junit", "weights")
"""Flags of a single run: with --watch they are refused."""


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("beside a running server")
    group.add_argument(
        "--watch",
        metavar="SECONDS",
        type=float,
        help="repeat the checks that do not disturb a server, with a pause of "
        f"{LEAST_SECONDS:g} to {MOST_SECONDS:g} s, and print a line for each change of status",
    )
    group.add_argument(
        "--metrics",
        metavar=f"FILE{SUFFIX}",
        type=Path,
        help="with --watch: replace this file after each pass, for node_exporter's textfile "
        "collector: a file needs no port, and fits beside any server",
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, in seconds; tests have their own."""

    date: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = field(default_factory=lambda: time.sleep)


@dataclass(slots=True)
class Watch:
    """Passes over one machine. `read` collects sources, by default those of this machine."""

    checks: Sequence[NodeCheck]
    needs: Needs
    interval: float
    metrics: Path | None = None
    read: Callable[[Sequence[Source]], Snapshot] = lambda sources: collect(platform.node(), sources)
    clock: Clock = field(default_factory=Clock)

    def run(self) -> int:
        """Repeat passes until SIGTERM or Ctrl-C. Returns the exit status of the last whole pass, or
        that of "not proven" before there is one. PenstockError if `metrics` cannot be written.
        """
        status = EXIT_STATUS[Outcome.NOT_PROVEN]
        passes = self._passes()
        try:
            with _sigterm_interrupts():
                while True:
                    status = next(passes).exit_status
                    self.clock.pause(self.interval)
        except KeyboardInterrupt:
            return status

    def _passes(self) -> Iterator[Verdict]:
        sources = sources_of(self.checks, self.needs)
        snapshot = self.read(sources)
        read_at = self.clock.monotonic()
        found = self._judge(snapshot)
        self._print(summary(found, self.needs))
        last = by_device(found.findings)
        yield found
        while True:
            before, before_at = snapshot, read_at
            snapshot = self.read(sources)
            read_at = self.clock.monotonic()
            found = self._judge(since(before, snapshot, sources, read_at - before_at))
            now = retained(last, by_device(found.findings))
            for change in changes(last, now):
                self._print(change.line())
            last = now
            yield found

    def _judge(self, snapshot: Snapshot) -> Verdict:
        found = verdict(findings_of(self.checks, snapshot, self.needs))
        if self.metrics:
            ended, interval = self.clock.date(), self.interval
            text = exposition(found.findings, ended=ended, interval=interval)
            replace_file(self.metrics, text)
        return found

    def _print(self, line: str) -> None:
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock.date()))
        print(f"{date} {line}", flush=True)


def since(before: Snapshot, now: Snapshot, sources: Sequence[Source], seconds: float) -> Snapshot:
    """`now` with counters that begin where the pass `before` ended, `seconds` ago, so that no
    growth between passes is missed.
    """
    evidence = dict(now.evidence)
    for source in sources:
        end = f"{source.name}.end"
        if isinstance(source, Growth) and before[end].is_present:
            evidence[source.name] = before[end]
            evidence[end] = replace(now[end], text=f"{seconds:.3f}")
    return Snapshot(now.node, evidence)


def summary(found: Verdict, needs: Needs) -> str:
    """The verdict, how many findings have each status, and those that are no pass."""
    faults = [
        " ".join(filter(None, (finding.status, finding.check, escaped(finding.device))))
        for finding in sorted(found.findings, key=lambda each: -SEVERITY.index(each.status))
        if finding.status not in (Status.PASS, Status.SKIPPED)
    ]
    return counted(found, needs) + (f": {', '.join(faults)}" if faults else "")


def watch(parsed: argparse.Namespace, checks: Sequence[NodeCheck], needs: Needs) -> int:
    """Run a Watch with the flags. Returns its exit status."""
    light = tuple(check for check in checks if check.runs_beside_server)
    if parsed.checks and len(light) < len(checks):
        heavy = ",".join(check.name for check in checks if not check.runs_beside_server)
        raise InvalidValueError("--checks", heavy, "with --watch, checks that fit beside a server")
    return Watch(light, needs, parsed.watch, parsed.metrics).run()


def validate(parsed: argparse.Namespace) -> None:
    """InvalidValueError or PenstockError for flags that do not fit together."""
    if parsed.watch is None:
        if parsed.metrics:
            raise PenstockError("--metrics is written by --watch SECONDS: give both")
        return
    if not LEAST_SECONDS <= parsed.watch <= MOST_SECONDS:
        expected = f"{LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds"
        raise InvalidValueError("--watch", parsed.watch, expected)
    if parsed.metrics and parsed.metrics.suffix != SUFFIX:
        expected = f"a name that ends in {SUFFIX}: node_exporter reads no other file"
        raise InvalidValueError("--metrics", str(parsed.metrics), expected)
    refused = [name for name in ONE_RUN_FLAGS if getattr(parsed, name)]
    if refused or parsed.nnodes > 1:
        raise PenstockError(
            "--watch is for this machine, without measurements of directories and without "
            "reports: leave HOST, --nnodes, --json, --junit and --weights out"
        )


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
