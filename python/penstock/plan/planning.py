"""A goal on a target -> the plan: arrivals, speed, search, document."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

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
        help="arrivals in place of these: JSON lines with timestamp (ms), input_length and "
        "output_length, as Mooncake's",
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
    """The first arrivals of a trace. PenstockError names the line that is not one."""
    found: list[Arrival] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(found) == most:
                    break
                found.append(_arrival(path, number, line))
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror or error}") from error
    if len(found) < 2:
        raise PenstockError(f"{path}: fewer than two arrivals")
    return sorted(found, key=lambda arrival: arrival.at)


def _arrival(path: Path, number: int, line: str) -> Arrival:
    try:
        row = json.loads(line)
        at, isl, osl = (row[key] for key in ("timestamp", "input_length", "output_length"))
        return Arrival(float(at) / 1e3, max(int(isl), 1), max(int(osl), 1))
    except (ValueError, TypeError, KeyError) as error:
        raise PenstockError(
            f"{path}:{number}: not an object with timestamp, input_length and output_length"
        ) from error
