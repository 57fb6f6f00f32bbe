"""`penstock up`: flags, and the way from a plan to its verdict."""

from __future__ import annotations

import argparse
import platform
import sys
from dataclasses import replace
from pathlib import Path

from penstock.config import forms
from penstock.config.machine import free_port
from penstock.config.terminal import has_styles
from penstock.core import InvalidValueError, PenstockError
from penstock.hub import locate
from penstock.model.sizing import parameters
from penstock_lab.bench import planned
from penstock_lab.bench import result as results
from penstock_lab.bench.result import Result
from penstock_ops.deploy import plan_file
from penstock_ops.deploy.compose import LAST_PORT
from penstock_ops.deploy.hosts import local_command
from penstock_ops.deploy.settings import Settings, name_of
from penstock_ops.deploy.tiers import tiers_of
from penstock_ops.deploy.volumes import Volume
from penstock_ops.plan.subject import read_subject
from penstock_ops.up.measures import Measures, measures_of
from penstock_ops.up.page import Run, page, report
from penstock_ops.up.predictions import FORM, Plan, predicted
from penstock_ops.up.server import LocalServer, ending_signals
from penstock_ops.up.verdict import verdict_of
from penstock_ops.verify.checks.registry import CHECKS, named
from penstock_ops.verify.command import verify_here, write
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import WEIGHTS, Needs, read_needs
from penstock_ops.verify.reports.document import dump
from penstock_ops.verify.verdict import verdict

GROUP = "Size"
SUMMARY = "verify, start and measure a plan on this machine; ends in one verdict"
PATIENCE = 3
"""Multiple of the planned time after which a start is aborted."""
ALIKE = 0.1
"""Share by which the number of parameters may differ: files tie or leave out matrices."""
EXAMPLES = """\
Examples:
  penstock plan smollm2 --measure --rate 0.5 --isl 64 --osl 16 --requests 40 -o plan.yaml
  penstock up plan.yaml
  penstock up plan.yaml --json up.json --calibrate results.json
  penstock up plan.yaml --keep --port 8000

Exit status: 0 the plan holds, 1 it does not, 3 not proven (docs/verify.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=run)
    parser.description = (
        "Check this machine as `penstock verify` does, start the server of a plan, run the plan's "
        "own load, and print predicted beside measured values. Ends in one verdict: the plan "
        "holds, or the layer at fault and by how much. The server is then stopped."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=argparse.SUPPRESS)
    parser.add_argument("--model", help="path, alias or name of the hub; default: the plan's name")
    parser.add_argument(
        "--kv-tier",
        action="append",
        default=[],
        metavar="TIER",
        help="as serve has it; repeatable; default: the plan's",
    )
    parser.add_argument(
        "--checks", metavar="NAME,...", help="of `penstock verify --list-checks`; default: all"
    )
    parser.add_argument("--port", type=int, help="of the server; default: a free one")
    parser.add_argument("--keep", action="store_true", help="leave the server running")
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="add the measurement to FILE, for `penstock plan --calibrate FILE`",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write the report as JSON, too; - for stdout only"
    )


def run(parsed: argparse.Namespace) -> int:
    """Return the exit status of the verdict. Stops the server also after errors and signals, unless
    --keep is given.
    """
    _check(parsed)
    plan = read_plan(parsed.plan)
    settings, needs = _settings(parsed, plan)
    port = parsed.port or free_port()
    metrics_port = free_port() if settings.engine == "penstock" else port
    command = local_command(settings, port, metrics_port)
    checks = named(parsed.checks.split(",")) if parsed.checks else CHECKS
    with ending_signals():
        _say("checking this machine")
        findings = verify_here(checks, needs).findings
        if _lacks_devices(findings):
            return _conclude(parsed, plan, needs, findings, None)
        server = LocalServer(command, port, metrics_port)
        return _served(parsed, plan, needs, findings, server, PATIENCE * settings.load_seconds)


def read_plan(path: Path) -> Plan:
    """A plan with all members that verification, deployment and measurement read. Raises
    PenstockError, which names the file, the key and the remedy.
    """
    plan_file.read_plan(path)
    planned.read_plan(path)
    return forms.read_plan(path, FORM)


def _check(parsed: argparse.Namespace) -> None:
    if parsed.port is not None and not 1 <= parsed.port <= LAST_PORT:
        raise InvalidValueError("--port", parsed.port, f"1 to {LAST_PORT}")
    if parsed.hosts:
        raise PenstockError(
            f"HOST {parsed.hosts[0]}: servers are started on this machine alone; start others by "
            f"`penstock deploy slurm` or `k8s`, and measure them by `penstock bench plan "
            f"{parsed.plan} --base-url URL`"
        )


def _settings(parsed: argparse.Namespace, plan: Plan) -> tuple[Settings, Needs]:
    """The deployment on this machine, and its needs."""
    name = str(plan["model"]["name"])
    path = locate(parsed.model or name, download=False).path
    _check_size(plan, path)
    tiers = tiers_of(parsed.kv_tier, plan, "")
    if tiers and plan["engine"] == "vllm":
        raise PenstockError("--kv-tier of vLLM is for pods and Compose, which set its environment")
    settings = Settings(plan, name_of(name), "", Volume(), str(path), tiers=tiers)
    weights = path if path.is_dir() else path.parent
    return settings, replace(read_needs(parsed.plan), directories={WEIGHTS: str(weights)})


def _check_size(plan: Plan, path: Path) -> None:
    """Raise PenstockError if the model has another size than the plan's. Digests cannot be
    compared, because plans by name use a catalogue, which has no files.
    """
    own, planned_size = parameters(read_subject(str(path)).spec), plan["model"]["parameters"]
    if abs(own - planned_size) > ALIKE * planned_size:
        raise PenstockError(
            f"{path} has {own:,} parameters, the plan's {plan['model']['name']} {planned_size:,}: "
            "name its model by --model, or make a plan for this one"
        )


def _lacks_devices(findings: tuple[Finding, ...]) -> bool:
    """Whether no server can start: a device is missing or faulty."""
    return any(each.layer is Layer.DEVICE and each.status is Status.FAIL for each in findings)


def _served(
    parsed: argparse.Namespace,
    plan: Plan,
    needs: Needs,
    findings: tuple[Finding, ...],
    server: LocalServer,
    patience: float,
) -> int:
    """Start the server, measure, report, and stop it."""
    is_kept = has_failed = False
    try:
        found = _measured(parsed, plan, server, patience)
        has_failed = found.result is None
        status = _conclude(parsed, plan, needs, findings, found)
        is_kept = parsed.keep and not has_failed
    finally:
        if not is_kept:
            server.end(keep_log=has_failed)
    if is_kept:
        _say(f"the server runs at {server.url}, process {server.pid}, log {server.log}")
    return status


def _measured(parsed: argparse.Namespace, plan: Plan, server: LocalServer, patience: float) -> Run:
    """Start the server and run the plan's load. Raises KeyboardInterrupt if the load was
    interrupted.
    """
    node = platform.node()
    _say(f"starting the server; log {server.log}")
    try:
        seconds = server.start(patience)
    except PenstockError as error:
        if server.pid is None:
            raise
        return Run(server.command, Measures(node, None, str(error)), None)
    _say(f"ready after {seconds:.1f} s; sending {plan['bench']['requests']} requests")
    before, meter = server.metrics(), server.meter()
    result = planned.measure_plan(plan, _bench_flags(parsed, plan, server.url))
    foreign = meter.read()["foreign_share"] if meter else None
    if result["penstock"]["partial"]:
        raise KeyboardInterrupt
    measures = measures_of(node, seconds, result, before, server.metrics(), foreign)
    return Run(server.command, measures, result)


def _bench_flags(parsed: argparse.Namespace, plan: Plan, url: str) -> argparse.Namespace:
    """The flags of `penstock bench plan` for this server."""
    parser = argparse.ArgumentParser()
    planned.add_arguments(parser)
    words = [str(parsed.plan), f"--base-url={url}", f"--model={plan['model']['name']}"]
    if not sys.stderr.isatty():
        words.append("--disable-tqdm")
    return parser.parse_args(words)


def _conclude(
    parsed: argparse.Namespace,
    plan: Plan,
    needs: Needs,
    findings: tuple[Finding, ...],
    run: Run | None,
) -> int:
    """Judge, print the page, and write the files. Returns the exit status."""
    found = verdict_of(plan, findings, run.measures) if run else verdict(findings)
    document = dump(report(plan, needs, run, found))
    if parsed.json == Path("-"):
        print(document, end="")
    else:
        is_styled = sys.stdout.isatty() and has_styles()
        print(page(plan, needs, run, found, is_styled=is_styled))
        if parsed.json:
            write(parsed.json, document)
    if parsed.calibrate and run and run.result:
        _calibrate(parsed.calibrate, plan, run.result)
    return found.exit_status


def _calibrate(path: Path, plan: Plan, result: Result) -> None:
    """Add the result to the file, as `penstock plan --calibrate` reads it."""
    if not result["completed"]:
        _say(f"{path} is not written: no request succeeded")
        return
    results.write(results.slim(result), path, append=True)
    band = predicted(plan, "median_tpot_ms")
    factor = f"{result['median_tpot_ms'] / band.mid:.3g} times" if band and band.mid else "beside"
    _say(f"TPOT is {factor} the prediction: penstock plan ... --calibrate {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
