"""`penstock plan` with a goal: determines arrivals and step times, searches for a deployment, and
writes the plan.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.slo import parse_slo
from penstock_ops.plan.arrivals import arrivals_of
from penstock_ops.plan.calibration import Band, shipped
from penstock_ops.plan.corrected import corrected
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.document import Request, as_needed, document, served, write
from penstock_ops.plan.engines import Engine, Load
from penstock_ops.plan.explained import step_lines
from penstock_ops.plan.fitting import Placement, fit
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.offers import offers, remedies
from penstock_ops.plan.prices import Dearer, preferred
from penstock_ops.plan.search import CHUNKS, Goal, Question, SearchResult, Speed
from penstock_ops.plan.starting import add_rates, rates_of, start_lines
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.summary import as_remedies, summary
from penstock_ops.plan.tiers import parse_tiers
from penstock_ops.plan.time_limit import SECONDS
from penstock_ops.plan.verdict import fails, misfit, suggestions

REQUESTS = 500
MEASURED = Band(0.85, 1.15)
"""Error band of predictions from steps that were measured here: the ratio of actual to predicted
time.
"""
WAITING = 3e-3
"""Part of the time to first token in seconds that is spent outside steps: in HTTP, tokenizer and
engine loop.
"""


def add_goal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("goal", "the load, and what its latencies may be")
    group.add_argument("--rate", type=float, metavar="R", help="requests a second, at random")
    group.add_argument(
        "--isl", type=int, default=1000, metavar="TOKENS", help="of a prompt (default: %(default)s)"
    )
    group.add_argument(
        "--osl", type=int, default=300, metavar="TOKENS", help="of an answer (default: %(default)s)"
    )
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
    group.add_argument(
        "--measure",
        action="store_true",
        help="with --on here: load the weights, time a few steps, and serve a few requests",
    )
    group.add_argument(
        "--measure-seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help="time limit of --measure, without loading; what every plan needs is measured even "
        "after it (default: %(default)g)",
    )
    group.add_argument(
        "--calibrate",
        type=Path,
        nargs="+",
        default=(),
        metavar="RESULT",
        help="files of `penstock bench plan --save-result`, which correct the predictions",
    )
    group.add_argument(
        "--tiers",
        metavar="KIND:SIZE[@GB/S],...",
        help="with --trace: KV tiers of a node that may be used, such as ram:512GiB,disk:4TiB@6; "
        "ram without a rate moves at the PCIe of the devices",
    )
    add_rates(group)
    group.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        metavar="N",
        help="that are simulated (default: %(default)s)",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="of arrivals and lengths (default: %(default)s)"
    )
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="plan.yaml")


def run_goal(
    parsed: argparse.Namespace,
    subject: Subject,
    targets: Sequence[Target],
    rules: Engine,
    load: Load,
    cuts: list[Cut],
    marks: str,
) -> tuple[int, list[str]]:
    """Search for a deployment, and write the plan file if requested. Returns the exit status, 1 if
    nothing meets the goal, and the lines about the result. `marks` are the characters of bars.
    """
    goal, workload = _goal(parsed)
    if load.context and not goal.longest <= load.context <= subject.spec.max_position:
        raise InvalidValueError(
            "--max-model-len",
            load.context,
            f"{goal.longest} tokens, the longest request, to {subject.spec.max_position}, the "
            "model's own length",
        )
    kv = parsed.kv_cache_dtype
    if parsed.calibrate and len(targets) > 1:
        raise InvalidValueError("--calibrate", parsed.on, "one target: results are of one")
    speed = speed_of(subject, targets[0], time_limit(parsed), parsed.calibrate)
    tiers = parse_tiers(parsed.tiers)
    if tiers and not goal.shares:
        raise InvalidValueError("--tiers", parsed.tiers, "a --trace whose prompts share prefixes")
    question = Question(
        subject, targets[0], rules, load, goal, speed, kv, tiers, cuts, parsed.replicas or 0
    )
    question, found, dearer = preferred(question, targets)
    if found.choice is None:
        return 1, _failed(question, found, dearer, workload)
    target = question.target
    request = Request(
        subject=subject,
        target=target,
        engine=rules,
        kv=kv,
        goal=goal,
        speed=speed,
        load=load,
        workload=workload,
        rates=rates_of(parsed),
    )
    offered = offers(question, found.choice.devices)
    plan = document(request, found, offered, dearer)
    if parsed.output:
        write(plan, parsed.output)
    length = served(found.choice.candidate.memory, request)
    memory = as_needed(found.choice, request, length).candidate.memory
    lines = summary(plan, request, memory, offered, marks)
    if parsed.explain:
        lines += ["", *step_lines(found.choice, goal), *start_lines(plan["start"])]
    return 0, lines


def _failed(
    question: Question, found: SearchResult, others: Sequence[Dearer], workload: Mapping[str, Any]
) -> list[str]:
    """Lines about a goal that no deployment meets: the shortfall, and changes that would help."""
    verdict = fails(question, found)
    if not found.lost:
        verdict = _misfit(question) or verdict
    rest = (f"{each.on}: {each.why}" for each in others)
    return [verdict, *rest, *suggestions("Try:", as_remedies(remedies(question, found, workload)))]


def _misfit(question: Question) -> str:
    """The verdict if one request of the load does not fit; empty if it does."""
    load, goal = question.load, question.goal
    load = replace(load, chunk=load.chunk or min(CHUNKS), context=max(load.context, goal.longest))
    cut = question.cuts[0] if question.cuts else None
    placement = Placement(question.subject, question.target, question.rules, load, question.kv, cut)
    memory = fit(placement)
    return "" if placement.holds(memory) else misfit(memory, placement)


def time_limit(parsed: argparse.Namespace) -> float | None:
    """Seconds that measuring steps may take; None without `--measure`."""
    if not 0 < parsed.measure_seconds < math.inf:
        raise InvalidValueError("--measure-seconds", parsed.measure_seconds, "a number over 0")
    return parsed.measure_seconds if parsed.measure else None


def speed_of(
    subject: Subject, target: Target, seconds: float | None, results: Sequence[Path] = ()
) -> Speed:
    """How step times are predicted: by fitted constants, or from steps that are measured on this
    machine in about `seconds`. Benchmark `results` of earlier plans correct both.
    """
    speed = _uncorrected(subject, target, seconds)
    if not results:
        return speed
    return corrected(subject, target, speed, results)


def _uncorrected(subject: Subject, target: Target, seconds: float | None) -> Speed:
    constants, band, source = shipped()
    if not target.accelerator.is_cpu:
        if seconds is not None:
            raise InvalidValueError("--measure", target.accelerator.name, "--on here")
        return Speed(constants, band, source)
    if seconds is None:
        raise PenstockError("the speed of this machine is not known: add --measure")
    from penstock_ops.plan.profile import measure

    profile = measure(subject, lambda text: print(f"measuring: {text}", file=sys.stderr), seconds)
    return Speed(constants, MEASURED, profile.extent, profile=profile, waiting=WAITING)


def _goal(parsed: argparse.Namespace) -> tuple[Goal, dict[str, Any]]:
    texts = [text for text in (parsed.slo or "").split(",") if text]
    slo = tuple(parse_slo("--slo", text) for text in texts)
    workload: dict[str, Any] = {"trace": str(parsed.trace), "requests": parsed.requests}
    if not parsed.trace:
        for name in ("rate", "isl", "osl", "requests"):
            value = getattr(parsed, name)
            if value is None or not value > 0:
                raise InvalidValueError(f"--{name}", value, "a number over 0")
        names = ("isl", "osl", "rate", "requests", "seed")
        workload = {name: getattr(parsed, name) for name in names}
    arrivals = arrivals_of(workload)
    return Goal(tuple(arrivals), slo), {**workload, "requests": len(arrivals)}
