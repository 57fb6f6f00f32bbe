"""`penstock up`: flags, and the way from a plan to its verdict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.config import forms
from penstock.config.machine import free_port
from penstock.core import InvalidValueError, PenstockError
from penstock.hub import locate
from penstock_lab.bench import planned
from penstock_ops.deploy import plan_file
from penstock_ops.deploy.compose import LAST_PORT
from penstock_ops.deploy.hosts import local_command
from penstock_ops.deploy.settings import Settings, name_of
from penstock_ops.deploy.tiers import tiers_of
from penstock_ops.deploy.volumes import Volume
from penstock_ops.up.hosts import CHECK as NODES
from penstock_ops.up.hosts import FORMS, HostsServer, find_models
from penstock_ops.up.node import serve_node
from penstock_ops.up.predictions import FORM, Plan
from penstock_ops.up.server import LocalServer, ending_signals
from penstock_ops.up.serving import conclude, say, serve
from penstock_ops.up.subject import check_size, directory_of
from penstock_ops.verify.between.command import findings_of_nodes
from penstock_ops.verify.between.hosts import AGENT, ssh_nodes
from penstock_ops.verify.between.survey import Settings as Survey
from penstock_ops.verify.checks.registry import CHECKS, named
from penstock_ops.verify.command import chosen, verify_here
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import WEIGHTS, Needs, read_needs

GROUP = "Size"
SUMMARY = "verify, start and measure a plan, here or on hosts; ends in one verdict"
PATIENCE = 3
"""Multiple of the planned time after which a start is aborted."""
HOSTS = (
    "start the plan's ranks on these hosts by your own ssh, the API server on the first; default: "
    "on this machine"
)
EXAMPLES = """\
Examples:
  penstock plan smollm2 --measure --rate 0.5 --isl 64 --osl 16 --requests 40 -o plan.yaml
  penstock up plan.yaml
  penstock up plan.yaml --json up.json --calibrate results.json
  penstock up plan.yaml --keep --port 8000
  penstock up plan.yaml node1 node2 --model /models/llama

Exit status: 0 the plan holds, 1 it does not, 3 not proven (docs/verify.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=run)
    parser.description = (
        "Check this machine, or HOSTs, as `penstock verify` does, start the server of a plan "
        "there, run the plan's own load from here, and print predicted beside measured values. "
        "Ends in one verdict: the plan holds, or the layer and the host at fault and by how much. "
        "The server is then stopped."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.yaml of `penstock plan -o`")
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=HOSTS)
    parser.add_argument(
        "--model",
        help="path, alias or name of the hub, on the hosts; default: the plan's name",
    )
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
    parser.add_argument(
        "--keep", action="store_true", help="leave the server running; not with HOSTs"
    )
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
    if parsed.plan == Path(AGENT) and not parsed.hosts:
        return serve_node()
    _check(parsed)
    plan = read_plan(parsed.plan)
    with ending_signals():
        return _on_hosts(parsed, plan) if parsed.hosts else _here(parsed, plan)


def _here(parsed: argparse.Namespace, plan: Plan) -> int:
    name = str(plan["model"]["name"])
    path = locate(parsed.model or name, download=False).path
    check_size(path, name, plan["model"]["parameters"])
    settings = _settings(parsed, plan, str(path))
    needs = replace(read_needs(parsed.plan), directories={WEIGHTS: directory_of(path)})
    port = parsed.port or free_port()
    metrics_port = free_port() if settings.engine == "penstock" else port
    command = local_command(settings, port, metrics_port)
    checks = named(parsed.checks.split(",")) if parsed.checks else CHECKS
    say("checking this machine")
    findings = verify_here(checks, needs).findings
    if prevents(findings):
        return conclude(parsed, plan, needs, findings, None)
    server = LocalServer(command, port, metrics_port)
    say(f"starting the server; log {server.log}")
    return serve(parsed, plan, needs, findings, server, PATIENCE * settings.load_seconds)


def _on_hosts(parsed: argparse.Namespace, plan: Plan) -> int:
    name = str(plan["model"]["name"])
    settings = _settings(parsed, plan, f"/{name}")
    check_hosts(settings, len(parsed.hosts))
    needs = needs_on(read_needs(parsed.plan), settings.ranks, len(parsed.hosts))
    checks = chosen(parsed.checks) if parsed.checks else CHECKS
    survey = Survey()
    with ssh_nodes(parsed.hosts, survey, "up", FORMS) as coordinator:
        say(f"checking {', '.join(node.name for node in coordinator.nodes)}")
        models = find_models(coordinator, parsed.model or name, name, plan["model"]["parameters"])
        own = {
            at: replace(needs, directories={WEIGHTS: directory})
            for at, directory in models.directories.items()
        }
        findings = findings_of_nodes(coordinator, parsed.checks, checks, needs, own, survey)
        findings += [
            fault.finding(coordinator.nodes[at].name) for at, fault in sorted(models.faults.items())
        ]
        if prevents(findings) or any(node.lost for node in coordinator.nodes):
            return conclude(parsed, plan, needs, findings, None)
        patience = PATIENCE * settings.load_seconds
        server = HostsServer(coordinator, settings, parsed.port or 0, patience)
        say(f"starting the server at {server.url}")
        return serve(parsed, plan, needs, findings, server, patience)


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
    if parsed.hosts and parsed.keep:
        raise PenstockError(
            "--keep is for this machine: on hosts, ranks end with their coordinator; `penstock "
            "deploy slurm` and `k8s` make servers that stay"
        )


def _settings(parsed: argparse.Namespace, plan: Plan, model: str) -> Settings:
    """The deployment without containers, of the model at the path `model`."""
    tiers = tiers_of(parsed.kv_tier, plan, "")
    if tiers and plan["engine"] == "vllm":
        raise PenstockError("--kv-tier of vLLM is for pods and Compose, which set its environment")
    return Settings(plan, name_of(str(plan["model"]["name"])), "", Volume(), model, tiers=tiers)


def check_hosts(settings: Settings, hosts: int) -> None:
    """PenstockError if the plan's replica cannot be on so many hosts."""
    if settings.engine != "penstock":
        raise PenstockError(
            f"the plan is for {settings.engine}: on hosts only Penstock is started; see `penstock "
            "deploy slurm` and `k8s`, and measure it by `penstock bench plan PLAN --base-url URL`"
        )
    if settings.choice["replicas"] > 1:
        raise PenstockError(
            f"the plan has {settings.choice['replicas']} replicas: one is started on HOSTs; plan "
            "one with its share of the load (penstock plan --replicas 1)"
        )
    if settings.has_devices and hosts != settings.nodes:
        raise PenstockError(f"the plan's replica is on {settings.nodes} hosts, not {hosts}")
    if hosts > settings.ranks:
        raise PenstockError(
            f"{hosts} HOSTs: the plan's tensor_parallel_size x pipeline_parallel_size is "
            f"{settings.ranks}, and a host has at least one rank"
        )


def needs_on(needs: Needs, ranks: int, hosts: int) -> Needs:
    """The needs of each host: those of a plan for CPUs are of one that has all ranks."""
    here = -(-ranks // hosts)
    shared = needs.shared_memory * here // max(needs.ranks, 1)
    return replace(needs, nodes=hosts, ranks=here, shared_memory=shared)


def prevents(findings: Sequence[Finding]) -> bool:
    """Whether no server can start: a device or a host's model is missing or faulty, or hosts do not
    reach each other.
    """
    return any(
        each.status is Status.FAIL
        and (each.layer is Layer.DEVICE or each.check in (NODES, "ports"))
        for each in findings
    )
