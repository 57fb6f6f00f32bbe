"""A goal on a target -> the plan: arrivals, speed, search, document."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock.bench import traces
from penstock.bench.slo import parse_slo
from penstock.core import InvalidValueError, PenstockError
from penstock.plan.calibration import shipped
from penstock.plan.cut import Cut
from penstock.plan.document import Request, document, summary, write
from penstock.plan.engines import Engine, Load
from penstock.plan.hardware import Target
from penstock.plan.search import Goal, Speed, search
from penstock.plan.subject import Subject
from penstock.plan.virtual import Arrival, poisson

REQUESTS = 500


def add_goal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("goal", "the load, and what its latencies may be")
    group.add_argument("--rate", type=float, metavar="R", help="requests a second, at random")
    group.add_argument("--isl", type=int, default=1000, metavar="TOKENS", help="of a prompt")
    group.add_argument("--osl", type=int, default=300, metavar="TOKENS", help="of an answer")
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="arrivals in place of these: a trace as `penstock bench trace` reads them",
    )
    group.add_argument(
        "--slo",
        metavar="STATISTIC:MS,...",
        help="such as p99_ttft_ms:2000,p99_tpot_ms:50",
    )
    group.add_argument("--requests", type=int, default=REQUESTS, metavar="N")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="plan.yaml")


def run_goal(
    parsed: argparse.Namespace,
    subject: Subject,
    target: Target,
    rules: Engine,
    load: Load,
    cuts: list[Cut],
) -> list[str]:
    """Search, write the document where it was asked for; its summary."""
    goal, workload = _goal(parsed)
    request = Request(
        subject,
        target,
        parsed.on,
        rules,
        parsed.kv_cache_dtype,
        goal,
        accelerator_speed(target),
        workload,
    )
    found = search(subject, target, rules, load, goal, request.speed, parsed.kv_cache_dtype, cuts)
    plan = document(request, found)
    if parsed.output:
        write(plan, parsed.output)
    return summary(plan, request)


def accelerator_speed(target: Target) -> Speed:
    """Fitted constants; this machine has none before it is measured."""
    if target.accelerator.is_cpu:
        raise PenstockError("the speed of this machine is not known: add --measure")
    constants, band, source = shipped()
    return Speed(constants, band, source)


def _goal(parsed: argparse.Namespace) -> tuple[Goal, dict[str, Any]]:
    texts = [text for text in (parsed.slo or "").split(",") if text]
    slo = tuple(parse_slo("--slo", text) for text in texts)
    if parsed.trace:
        arrivals = read_trace(parsed.trace, parsed.requests)
        return Goal(tuple(arrivals), slo), {"trace": str(parsed.trace), "requests": len(arrivals)}
    for name in ("rate", "isl", "osl", "requests"):
        value = getattr(parsed, name)
        if value is None or not value > 0:
            raise InvalidValueError(f"--{name}", value, "a number over 0")
    arrivals = poisson(parsed.rate, parsed.requests, parsed.isl, parsed.osl, parsed.seed)
    workload = {name: getattr(parsed, name) for name in ("isl", "osl", "rate", "requests", "seed")}
    return Goal(tuple(arrivals), slo), workload


def read_trace(path: Path, most: int) -> list[Arrival]:
    """The first arrivals of a trace. PenstockError for a file that holds none, and names the line
    that is not one.
    """
    try:
        rows = traces.read(path).arrivals[:most]
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror or error}") from error
    if len(rows) < 2:
        raise PenstockError(f"{path}: fewer than two arrivals")
    return [Arrival(row.at, max(row.input_tokens, 1), max(row.output_tokens, 1)) for row in rows]
