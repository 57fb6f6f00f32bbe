"""`penstock route`: compares routing profiles offline (docs/routing.md), explains a gateway's
decisions, and validates files of custom resources (docs/gateway.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from penstock.cli.gateway import complaint
from penstock.core import InvalidValueError
from penstock.inference_extension import converted, rules_of
from penstock.inference_extension import read as read_kinds
from penstock_lab.bench.routing import (
    POLICIES,
    WORKLOADS,
    Fleet,
    Policy,
    Summary,
    Workload,
    from_trace,
    made_up,
    policy,
    replay,
)
from penstock_lab.bench.table import figure, render
from penstock_lab.bench.traces import read
from penstock_lab.route.explain import explain
from penstock_lab.sim import PRESETS, profile

GROUP = "Look inside"
SUMMARY = "how replicas are chosen: replay, explain, lint"
COLUMNS = (
    "TTFT mean ms",
    "P50",
    "P99",
    "TPOT mean ms",
    "P99",
    "tokens/s",
    "cached",
    "unevenness",
    "failed",
    "profile",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Look into the choice of replicas."
    acts = parser.add_subparsers(required=True, metavar="ACT")
    own = acts.add_parser("replay", help="compare profiles on modelled replicas, in virtual time")
    own.description = (
        "Play a trace, or a made-up workload, under each profile on modelled replicas, in virtual "
        "time, and print the latencies that come of it."
    )
    own.add_argument("trace", metavar="TRACE", help=f"a trace file, or {', '.join(WORKLOADS)}")
    own.add_argument(
        "--profile",
        action="append",
        metavar="NAME|FILE",
        help=f"rules to compare: {', '.join(POLICIES)}, or a YAML or JSON file; repeatable "
        "(default: all of these)",
    )
    own.add_argument(
        "--replicas",
        type=int,
        default=8,
        metavar="N",
        help="how many there are (default: %(default)s)",
    )
    own.add_argument(
        "--engine",
        default="h100",
        metavar="NAME|FILE",
        help=f"model of each replica: {', '.join(PRESETS)}, or a JSON file (default: %(default)s)",
    )
    own.add_argument(
        "--rate", type=float, default=1.0, metavar="X", help="play so many times as fast"
    )
    own.add_argument(
        "--start", type=float, default=0.0, metavar="S", help="second at which a trace begins"
    )
    own.add_argument("--duration", type=float, metavar="S", help="seconds of the trace")
    own.add_argument(
        "--poll", type=float, default=0.05, metavar="S", help="between two readings of metrics"
    )
    own.add_argument(
        "--no-reservations",
        action="store_true",
        help="requests count when metrics show them, not when they are sent",
    )
    own.add_argument(
        "--gateways",
        type=int,
        default=1,
        metavar="N",
        help="that share the requests and tell one another nothing (default: 1)",
    )
    own.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of made-up workloads and of ties (default: %(default)s)",
    )
    own.add_argument("--output", type=Path, metavar="FILE", help="the numbers, as JSON")
    own.set_defaults(command=_replay)
    _explain_arguments(acts.add_parser("explain", help="why a gateway chooses which replica"))
    _lint_arguments(acts.add_parser("lint", help="check files of kinds, and convert old ones"))


def _explain_arguments(own: argparse.ArgumentParser) -> None:
    own.description = (
        "Ask a gateway that runs with --explain what would become of a request now, and print the "
        "replicas in their order with load, scores and filters. The request is not sent."
    )
    own.add_argument("request", type=Path, metavar="FILE", help="body of the request, JSON")
    own.add_argument(
        "--gateway",
        default="http://127.0.0.1:8080",
        metavar="URL",
        help="the one to ask (default: %(default)s)",
    )
    own.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="such as x-session-id:a or x-gateway-inference-objective:batch; repeatable",
    )
    own.add_argument(
        "--api-key",
        metavar="KEY",
        help="key that the gateway wants; default: the environment's PENSTOCK_API_KEY",
    )
    own.add_argument("--json", action="store_true", help="print the gateway's answer as it is")
    own.set_defaults(command=explain)


def _lint_arguments(own: argparse.ArgumentParser) -> None:
    own.description = (
        "Check files of InferencePool, InferenceObjective, InferenceModelRewrite and "
        "InferenceModel resources: unknown members, wrong values, pools that are missing, and "
        "resources that are at odds. The exit status is 1 where something is wrong."
    )
    own.add_argument("files", nargs="*", type=Path, metavar="FILE", help="YAML or JSON")
    own.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="also check this gateway.yaml: pools, rules, policies, and its files of kinds",
    )
    own.add_argument(
        "--pool",
        action="append",
        default=[],
        metavar="NAME",
        help="a pool that there is without being in the files; repeatable",
    )
    own.add_argument(
        "--convert", action="store_true", help="print the new kinds for the old ones as YAML"
    )
    own.set_defaults(command=_lint)


def _lint(parsed: argparse.Namespace) -> int:
    if not parsed.files and parsed.config is None:
        raise InvalidValueError("FILE", "", "a file of kinds, or --config")
    resources, findings = read_kinds(parsed.files)
    rules = rules_of(resources, parsed.pool)
    findings = sorted({*findings, *rules.findings}, key=lambda one: (one.file, one.line))
    out = sys.stderr if parsed.convert else sys.stdout
    for finding in findings:
        print(finding, file=out)
    wrong = sum(finding.wrong for finding in findings)
    if parsed.config is not None and (text := complaint(parsed.config)) is not None:
        wrong += 1
        print(text, file=out)
    if parsed.convert:
        print(converted(resources), end="")
    else:
        models, objectives = len(rules.models), len(rules.objectives)
        print(
            f"{len(resources)} resources: {models} rules for models, {objectives} objectives, "
            f"{wrong} errors"
        )
    return int(wrong > 0)


def _replay(parsed: argparse.Namespace) -> int:
    chosen = [policy(named) for named in parsed.profile or POLICIES]
    if not 1 <= parsed.replicas <= 1024:
        raise InvalidValueError("--replicas", parsed.replicas, "1 to 1024")
    if not 1 <= parsed.gateways <= 64:
        raise InvalidValueError("--gateways", parsed.gateways, "1 to 64")
    if not 0 < parsed.rate < 1e6:
        raise InvalidValueError("--rate", parsed.rate, "more than 0")
    fleet = Fleet(
        engines=(profile(parsed.engine),) * parsed.replicas,
        poll=parsed.poll,
        reservations=not parsed.no_reservations,
        gateways=parsed.gateways,
        seed=parsed.seed,
    )
    workload = _workload(parsed)
    found = [replay(workload, one, fleet, _meter(one)) for one in chosen]
    print("\n".join(render(COLUMNS, [_row(one) for one in found])))
    if parsed.output is not None:
        results = {"workload": workload.name, "results": [asdict(one) for one in found]}
        parsed.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _workload(parsed: argparse.Namespace) -> Workload:
    if parsed.trace in WORKLOADS:
        return made_up(parsed.trace, parsed.rate, parsed.duration, parsed.seed)
    return from_trace(read(Path(parsed.trace)), parsed.rate, parsed.start, parsed.duration)


def _row(one: Summary) -> list[str]:
    return [
        figure(one.ttft_mean, 0),
        figure(one.ttft_p50, 0),
        figure(one.ttft_p99, 0),
        figure(one.tpot_mean, 1),
        figure(one.tpot_p99, 1),
        figure(one.tokens_per_s, 0),
        f"{one.cached:.1%}",
        figure(one.unevenness),
        str(one.failed),
        one.policy,
    ]


def _meter(one: Policy) -> Callable[[int, int], object] | None:
    """Function that shows the progress of a replay; None unless stderr is a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(arrived: int, requests: int) -> None:
        text = f"{one.name}: {arrived:,} of {requests:,} requests"
        print(f"\r\x1b[K{text}", end="\r", file=sys.stderr, flush=True)

    return show
