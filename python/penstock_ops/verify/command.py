"""`penstock verify`: flags, and the way from sources to one verdict."""

from __future__ import annotations

import argparse
import platform
import sys
from dataclasses import replace
from pathlib import Path

from penstock.config.terminal import has_styles
from penstock.core import PenstockError
from penstock_ops.verify.between.command import (
    add_host_arguments,
    findings_of_hosts,
    serve_agent,
)
from penstock_ops.verify.between.judgement import CHECKS as BETWEEN
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.registry import CHECKS, named
from penstock_ops.verify.judging import findings_of, sources_of
from penstock_ops.verify.needs import WEIGHTS, Needs, read_needs
from penstock_ops.verify.reports.document import document, dump
from penstock_ops.verify.reports.junit import junit
from penstock_ops.verify.reports.text import text
from penstock_ops.verify.serving import with_serving
from penstock_ops.verify.sources import collect
from penstock_ops.verify.verdict import Verdict, verdict
from penstock_ops.verify.watch import add_watch_arguments, validate, watch

GROUP = "Size"
SUMMARY = "check whether this machine gives what a plan needs"
EXAMPLES = """\
Examples:
  penstock verify
  penstock verify --plan plan.yaml --weights /models/DeepSeek-R1
  penstock verify --checks ecc,xid --json verify.json
  penstock verify --watch 60 --metrics /var/lib/node_exporter/penstock.prom

Exit status: 0 the plan holds, 1 it does not, 3 not proven: something that it
depends on could not be read (docs/verify.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=run)
    parser.description = (
        "Check devices, memory, fabric, storage and limits of this machine against what a plan "
        "needs, and against what the hardware is expected to give. Ends in one verdict with its "
        "cause and a remedy. Changes nothing."
    )
    parser.epilog = EXAMPLES
    add_host_arguments(parser)
    parser.add_argument("--plan", metavar="FILE", type=Path, help="plan.yaml of `penstock plan`")
    parser.add_argument(
        "--checks", metavar="NAME,...", help="run only these of --list-checks; default: all"
    )
    parser.add_argument("--list-checks", action="store_true", help="print the checks, and exit")
    parser.add_argument(
        "--weights",
        metavar="DIR",
        type=Path,
        help="directory of the model's files, to measure its read rate",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration of `penstock serve`, for the directories and stores of its KV tiers",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write the report as JSON, too; - for stdout only"
    )
    parser.add_argument(
        "--junit", metavar="FILE", type=Path, help="write the report as JUnit XML, too"
    )
    add_watch_arguments(parser)


def run(parsed: argparse.Namespace) -> int:
    """Collect, judge and report. Returns the exit status of the verdict."""
    validate(parsed)
    if (status := serve_agent(parsed)) is not None:
        return status
    if parsed.list_checks:
        print("\n".join(check_lines()))
        return 0
    checks = chosen(parsed.checks) if parsed.checks else CHECKS
    needs = requirements(parsed)
    if parsed.watch:
        return watch(parsed, checks, needs)
    findings = findings_of_hosts(parsed, checks, needs)
    found = verify_here(checks, needs) if findings is None else verdict(findings)
    report(found, needs, parsed)
    return found.exit_status


def chosen(names: str) -> tuple[NodeCheck, ...]:
    """The checks of one node among `names`, which may also have those between nodes."""
    return named([name for name in names.split(",") if name not in BETWEEN])


def requirements(parsed: argparse.Namespace) -> Needs:
    """Needs of the plan, and the directories given by flags."""
    needs = read_needs(parsed.plan) if parsed.plan else Needs()
    if parsed.weights:
        if not parsed.hosts and not parsed.weights.is_dir():
            raise PenstockError(f"--weights {parsed.weights}: no such directory")
        # A path of other hosts may be another file, or a link, here.
        weights = parsed.weights if parsed.hosts else parsed.weights.resolve()
        needs = replace(needs, directories={WEIGHTS: str(weights)})
    return with_serving(needs, parsed.config) if parsed.config else needs


def verify_here(checks: tuple[NodeCheck, ...], needs: Needs) -> Verdict:
    node = collect(platform.node(), sources_of(checks, needs))
    return verdict(findings_of(checks, node, needs))


def report(found: Verdict, needs: Needs, parsed: argparse.Namespace) -> None:
    if parsed.junit:
        write(parsed.junit, junit(found))
    if parsed.json == Path("-"):
        print(dump(document(found, needs)), end="")
        return
    if parsed.json:
        write(parsed.json, dump(document(found, needs)))
    print(text(found, needs, is_styled=sys.stdout.isatty() and has_styles()))


def write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror}") from error


def check_lines() -> list[str]:
    rows = {check.name: f"{check.title} ({check.layer})" for check in CHECKS} | dict(BETWEEN)
    width = max(map(len, rows))
    return [f"{name.ljust(width)}  {title}" for name, title in rows.items()]
