"""Placement of stages. Ranks of a stage share memory, so a stage is one bundle on one node."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core import PenstockError
from penstock.executor.ray.cluster import Cluster, Node
from penstock.ranks import RankLayout

LOOK = 1.0
"""Seconds between polls, and before a wait is logged."""

log = logging.getLogger("penstock.executor")


@dataclass(frozen=True, slots=True)
class RankPlacement:
    bundle: int
    node: Node


@dataclass(frozen=True, slots=True)
class Placement:
    group: Any
    ranks: tuple[RankPlacement, ...]


def place(cluster: Cluster, layout: RankLayout, strategy: str, deadline: float) -> Placement:
    """Reserve a CPU for each rank. After `deadline` seconds PenstockError names the shortage."""
    group = cluster.reserve(
        [{"CPU": float(layout.tp)}] * layout.pp, strategy.replace("-", "_").upper()
    )
    began, said = time.monotonic(), False
    try:
        while not cluster.reserved(group, min(LOOK, deadline)):
            if time.monotonic() - began >= deadline:
                raise PenstockError(
                    f"{shortage(cluster, layout, strategy)}; waited {deadline:.0f} s"
                )
            if not said:
                log.warning("waiting for room: %s", shortage(cluster, layout, strategy))
                said = True
        placed = assign(layout, cluster.bundle_nodes(group), cluster.nodes(), cluster.here)
        return Placement(group, placed)
    except BaseException:
        cluster.release(group)
        raise


def assign(
    layout: RankLayout, places: Sequence[str], nodes: Sequence[Node], here: str
) -> tuple[RankPlacement, ...]:
    """Stages node by node, the engine's own node first: the fewest pipes cross nodes.

    `places` names the node of each bundle.
    """
    known = {node.id: node for node in nodes}
    lost = [place for place in places if place not in known]
    if lost:
        raise PenstockError(f"node {lost[0]} was lost while ranks were placed on it")
    order = sorted(
        range(len(places)),
        key=lambda at: (places[at] != here, known[places[at]].address, places[at], at),
    )
    placed = [RankPlacement(bundle, known[places[bundle]]) for bundle in order]
    return tuple(each for each in placed for _ in range(layout.tp))


def shortage(cluster: Cluster, layout: RankLayout, strategy: str) -> str:
    """Needs of the ranks, resources of the cluster and the remedy, in one line."""
    nodes = cluster.nodes()
    least = {"spread": 1, "pack": 1, "strict-pack": 1, "strict-spread": layout.pp}[strategy]
    each = layout.size if strategy == "strict-pack" else layout.tp
    size = layout.size
    needs = f"{size} ranks need {size} x {{CPU: 1}} with --placement {strategy}"
    if least > 1:
        needs += f" on {least} nodes"
    if each > 1:
        needs += f", {each} of them on one node"
    has = ", ".join(
        f"{node.address} {{CPU: {node.cpus:g}}}" for node in sorted(nodes, key=lambda n: n.address)
    )
    free = f"{cluster.free_cpus():g} CPUs are free"
    there = f"the cluster has {_count(len(nodes), 'node')} ({has}), {free}"
    return f"{needs}; {there}. {_remedy(layout, nodes, least, each)}"


def _remedy(layout: RankLayout, nodes: Sequence[Node], least: int, each: int) -> str:
    if len(nodes) < least:
        return "Add nodes or choose another --placement"
    if max((node.cpus for node in nodes), default=0.0) < each:
        # Sums of a stage go through shared memory, so it cannot be spread.
        return (
            "Add a larger node, or lower --tensor-parallel-size: the ranks of a stage share memory"
        )
    if sum(node.cpus for node in nodes) < layout.size:
        return "Add nodes or CPUs (ray start --num-cpus is what may be used, not what exists)"
    return "Something else holds them: look at `ray status`"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
