"""Hosts of `penstock verify`: flags, and the findings of several nodes."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from penstock.config import cluster_key
from penstock.core import PenstockError
from penstock_ops.verify.between.collecting import request, snapshot_of
from penstock_ops.verify.between.coordinator import Coordinator, Request
from penstock_ops.verify.between.hosts import (
    AGENT,
    call,
    called_nodes,
    serve_standard,
    ssh_nodes,
)
from penstock_ops.verify.between.judgement import CHECKS, judge
from penstock_ops.verify.between.survey import Settings, survey
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.finding import Finding
from penstock_ops.verify.judging import findings_of
from penstock_ops.verify.needs import Needs

COLLECT_SECONDS = 270.0
"""Time limit of the checks of a node: measurements of storage are the longest."""
START_SECONDS = 600.0
"""Seconds that nodes wait for each other, because pods may pull an image first."""


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST",
        help="check these hosts, and what is between them, by your own ssh; default: this machine",
    )
    pods = parser.add_argument_group("nodes without ssh", "as in `penstock serve`")
    pods.add_argument("--nnodes", type=int, default=1, metavar="N", help="run on N nodes at once")
    pods.add_argument("--node-rank", type=int, default=0, metavar="N", help="0 reports")
    pods.add_argument("--master-addr", metavar="HOST[:PORT]", help="of node 0")
    pods.add_argument("--cluster-token-file", metavar="FILE", help="secret that all nodes share")


def serve_agent(parsed: argparse.Namespace) -> int | None:
    """Be an agent, if the flags tell so, and return the exit status; None otherwise."""
    if parsed.hosts == [AGENT]:
        return serve_standard()
    if parsed.nnodes > 1 and parsed.node_rank > 0:
        return call(_master(parsed), parsed.node_rank, _key(parsed), START_SECONDS)
    return None


def findings_of_hosts(
    parsed: argparse.Namespace, checks: Sequence[NodeCheck], needs: Needs
) -> list[Finding] | None:
    """Findings of all nodes, and between them; None without hosts."""
    nodes = _nodes(parsed)
    if nodes is None:
        return None
    with nodes as coordinator:
        return findings_of_nodes(coordinator, parsed.checks, checks, needs)


def findings_of_nodes(
    coordinator: Coordinator,
    names: str | None,
    checks: Sequence[NodeCheck],
    needs: Needs,
    own: Mapping[int, Needs] | None = None,
    settings: Settings | None = None,
) -> list[Finding]:
    """Findings of all nodes, and between them, of the checks in the list `names`; None for all.
    `own` has the needs of nodes that differ from `needs`, such as in their directories.
    """
    found = node_findings(coordinator, checks, needs, own)
    between = names.split(",") if names else CHECKS
    found += findings_between(coordinator, needs, settings, between)
    if not names:
        return found
    # A node that does not answer is never left out.
    kept = {*names.split(","), "agents"}
    return [finding for finding in found if finding.check in kept]


def findings_between(
    coordinator: Coordinator,
    needs: Needs,
    settings: Settings | None = None,
    checks: Collection[str] = CHECKS.keys(),
) -> list[Finding]:
    """Measure between the nodes what `checks` need, and judge it."""
    return judge(survey(coordinator, needs, settings or Settings(), checks), needs)


def node_findings(
    coordinator: Coordinator,
    checks: Sequence[NodeCheck],
    needs: Needs,
    own: Mapping[int, Needs] | None = None,
) -> list[Finding]:
    """The findings of each node's checks. A lost node is a finding of `findings_between`."""
    if not checks:
        return []
    found: list[Finding] = []
    needs_at = {at: (own or {}).get(at, needs) for at in coordinator.alive}
    requests = {
        at: Request("collect", request(checks, each), COLLECT_SECONDS)
        for at, each in needs_at.items()
    }
    for at, reply in sorted(coordinator.run_each(requests).items()):
        node = coordinator.nodes[at]
        if reply.error:
            node.lost = f"collect: {reply.error}"
            continue
        try:
            snapshot = snapshot_of(node.name, reply.result)
            found += findings_of(checks, snapshot, needs_at[at])
        except (PenstockError, KeyError) as error:
            node.lost = f"collect: {error}"
    return found


def _nodes(parsed: argparse.Namespace) -> AbstractContextManager[Coordinator] | None:
    if parsed.nnodes > 1:
        if parsed.hosts:
            raise PenstockError("--nnodes is for nodes without ssh: give no HOST with it")
        settings = Settings(join=START_SECONDS)
        return called_nodes(_master(parsed), parsed.nnodes, _key(parsed), settings)
    return ssh_nodes(parsed.hosts, Settings()) if parsed.hosts else None


def _master(parsed: argparse.Namespace) -> str:
    if not parsed.master_addr:
        raise PenstockError(
            f"--nnodes {parsed.nnodes} needs --master-addr: where node 0 is, the same on all nodes"
        )
    return str(parsed.master_addr)


def _key(parsed: argparse.Namespace) -> bytes:
    return cluster_key(parsed.cluster_token_file)
