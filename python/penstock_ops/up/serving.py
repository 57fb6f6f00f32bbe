"""A plan's server, started, measured under the plan's load, and ended; then the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from penstock.config.terminal import has_styles
from penstock.core import PenstockError
from penstock_lab.bench import planned
from penstock_lab.bench import result as results
from penstock_lab.bench.result import Result
from penstock_ops.top.exposition import Page
from penstock_ops.up.measures import Measures, measures_of
from penstock_ops.up.page import Run, page, report
from penstock_ops.up.predictions import Plan, predicted
from penstock_ops.up.verdict import verdict_of
from penstock_ops.verify.command import write
from penstock_ops.verify.finding import Finding
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.reports.document import dump
from penstock_ops.verify.verdict import verdict


class Server(Protocol):
    """A server of a plan, on this machine or on hosts."""

    api_key: str
    """Key that clients need; empty for none."""

    @property
    def node(self) -> str:
        """Host of the API server."""

    @property
    def url(self) -> str: ...

    @property
    def command(self) -> list[str]: ...

    @property
    def process(self) -> str:
        """Its process, or hosts, in words."""

    @property
    def logs(self) -> str:
        """Where its log is, or its logs are."""

    @property
    def is_started(self) -> bool:
        """Whether an error of `start` is one of the server; else it is one of the command's use."""

    def start(self, patience: float) -> float:
        """Seconds until it is ready. PenstockError if it does not become so."""

    def watched(self) -> AbstractContextManager[None]:
        """Ends the block early if a host fails: `findings` then has the fault."""

    def findings(self) -> list[Finding]:
        """The state of its hosts."""

    def metrics(self) -> Page: ...

    def usage(self) -> Callable[[], tuple[str, float] | None]: ...

    def end(self, *, keep_log: bool = False) -> None: ...


def serve(
    parsed: argparse.Namespace,
    plan: Plan,
    needs: Needs,
    findings: Sequence[Finding],
    server: Server,
    patience: float,
) -> int:
    """Start the server, measure, report, and stop it. Returns the exit status of the verdict."""
    is_kept = has_failed = False
    try:
        run = _measured(parsed, plan, server, patience)
        has_failed = run.result is None or bool(run.measures.failed)
        status = conclude(parsed, plan, needs, [*findings, *server.findings()], run)
        is_kept = parsed.keep and run.result is not None
    finally:
        if not is_kept:
            server.end(keep_log=has_failed)
    if is_kept:
        say(f"the server runs at {server.url}, {server.process}, log {server.logs}")
    elif has_failed:
        say(f"kept: {server.logs}")
    return status


def _measured(parsed: argparse.Namespace, plan: Plan, server: Server, patience: float) -> Run:
    """Start the server and run the plan's load. Raises KeyboardInterrupt if the load was
    interrupted.
    """
    try:
        seconds = server.start(patience)
    except PenstockError as error:
        if not server.is_started:
            raise
        return Run(server.command, Measures(server.node, None, str(error)), None)
    say(f"ready after {seconds:.1f} s; sending {plan['bench']['requests']} requests")
    before, usage = server.metrics(), server.usage()
    result = _load(parsed, plan, server)
    if result is None:
        return Run(server.command, Measures(server.node, seconds), None)
    measures = measures_of(server.node, seconds, result, before, server.metrics(), usage())
    return Run(server.command, measures, result)


def _load(parsed: argparse.Namespace, plan: Plan, server: Server) -> Result | None:
    """The result of the plan's load; None, or a partial one, if a host failed meanwhile."""
    result = None
    with server.watched():
        result = planned.measure_plan(plan, _bench_flags(parsed, plan, server))
        if result["penstock"]["partial"]:
            raise KeyboardInterrupt
    return result


def _bench_flags(parsed: argparse.Namespace, plan: Plan, server: Server) -> argparse.Namespace:
    """The flags of `penstock bench plan` for this server."""
    parser = argparse.ArgumentParser()
    planned.add_arguments(parser)
    words = [str(parsed.plan), f"--base-url={server.url}", f"--model={plan['model']['name']}"]
    if not sys.stderr.isatty():
        words.append("--disable-tqdm")
    flags = parser.parse_args(words)
    if server.api_key:
        flags.header = [("Authorization", f"Bearer {server.api_key}")]
    return flags


def conclude(
    parsed: argparse.Namespace,
    plan: Plan,
    needs: Needs,
    findings: Sequence[Finding],
    run: Run | None,
) -> int:
    """Judge, print the page, and write the files. Returns the exit status. Without `run` no server
    was started.
    """
    found = verdict_of(plan, findings, run.measures) if run else verdict(findings)
    document = dump(report(plan, needs, run, found))
    if parsed.json == Path("-"):
        print(document, end="")
    else:
        is_styled = sys.stdout.isatty() and has_styles()
        print(page(plan, needs, run, found, is_styled=is_styled))
        if parsed.json:
            write(parsed.json, document)
    if parsed.calibrate and run and run.result and not run.result["penstock"]["partial"]:
        _calibrate(parsed.calibrate, plan, run.result)
    return found.exit_status


def _calibrate(path: Path, plan: Plan, result: Result) -> None:
    """Add the result to the file, as `penstock plan --calibrate` reads it."""
    if not result["completed"]:
        say(f"{path} is not written: no request succeeded")
        return
    results.write(results.slim(result), path, append=True)
    band = predicted(plan, "median_tpot_ms")
    factor = f"{result['median_tpot_ms'] / band.mid:.3g} times" if band and band.mid else "beside"
    say(f"TPOT is {factor} the prediction: penstock plan ... --calibrate {path}")


def say(text: str) -> None:
    print(text, file=sys.stderr)
