"""Placement of pipeline stages on the nodes of a Ray cluster. The ranks of a stage form one bundle
of resources, so they share a node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core import PenstockError
from penstock.executor.ranks import RankLayout
from penstock.executor.ray.cluster import Cluster, Node

LOOK = 1.0
"""Seconds between two checks of the reservation. The first log line about waiting comes after one
interval.
"""

log = logging.getLogger("penstock.executor")


@dataclass(frozen=True, slots=True)
class RankPlacement:
    bundle: int
    node: Node


@dataclass(frozen=True, slots=True)
class Placement:
    group: Any
    ranks: tuple[RankPlacement, ...]
    unit: str | None = None
    """Ray resource of which each rank gets one unit beside a CPU, for example `GPU`."""


def place(
    cluster: Cluster, layout: RankLayout, strategy: str, deadline: float, unit: str | None = None
) -> Placement:
    """Reserve one CPU for each rank, and one of the resource `unit`. Raises PenstockError, which
    names the missing resources, after `deadline` seconds.
    """
    each = {"CPU": 1, **({unit: 1} if unit else {})}
    bundle = {kind: float(count * layout.tp) for kind, count in each.items()}
    group = cluster.reserve([bundle] * layout.pp, strategy.replace("-", "_").upper())
    began, said = time.monotonic(), False
    try:
        while not cluster.reserved(group, min(LOOK, deadline)):
            if time.monotonic() - began >= deadline:
                raise PenstockError(
                    f"{shortage(cluster, layout, strategy, each)}; waited {deadline:.0f} s"
                )
            if not said:
                log.warning("waiting for room: %s", shortage(cluster, layout, strategy, each))
                said = True
        placed = assign(layout, cluster.bundle_nodes(group), cluster.nodes(), cluster.here)
        return Placement(group, placed, unit)
    except BaseException:
        cluster.release(group)
        raise


def assign(
    layout: RankLayout, places: Sequence[str], nodes: Sequence[Node], here: str
) -> tuple[RankPlacement, ...]:
    """Assign stages to bundles node by node, beginning with the engine's node (`here`), so that few
    pipes cross between nodes.

    `places` has the node of each bundle.
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


def shortage(cluster: Cluster, layout: RankLayout, strategy: str, rank: Mapping[str, int]) -> str:
    """One line for an error: needs of the ranks, resources of the cluster, and the remedy. `rank`
    has the resources that each rank needs.
    """
    nodes = cluster.nodes()
    least = {"spread": 1, "pack": 1, "strict-pack": 1, "strict-spread": layout.pp}[strategy]
    together = layout.size if strategy == "strict-pack" else layout.tp
    size = layout.size
    needs = f"{size} ranks need {size} x {_set(rank)} with --placement {strategy}"
    if least > 1:
        needs += f" on {least} nodes"
    if together > 1:
        needs += f", {together} of them on one node"
    has = ", ".join(
        f"{node.address} {_set({kind: _of(node, kind) for kind in rank})}"
        for node in sorted(nodes, key=lambda n: n.address)
    )
    free = " and ".join(f"{cluster.free(kind):g} {kind}s" for kind in rank)
    there = f"the cluster has {_count(len(nodes), 'node')} ({has}), {free} are free"
    return f"{needs}; {there}. {_remedy(layout, nodes, least, together, rank)}"


def _remedy(
    layout: RankLayout, nodes: Sequence[Node], least: int, together: int, rank: Mapping[str, int]
) -> str:
    if len(nodes) < least:
        return "Add nodes or choose another --placement"
    for kind, count in rank.items():
        if max((_of(node, kind) for node in nodes), default=0.0) < count * together:
            # A bundle must fit on one node.
            return (
                f"Add a node with more {kind}s, or lower --tensor-parallel-size: the ranks of a "
                "stage are on one node"
            )
        if sum(_of(node, kind) for node in nodes) < count * layout.size:
            return (
                f"Add nodes or {kind}s (ray start --num-{kind.lower()}s is what may be used, not "
                "what exists)"
            )
    return "Something else holds them: look at `ray status`"


def _of(node: Node, kind: str) -> float:
    return node.cpus if kind == "CPU" else node.devices.get(kind, 0.0)


def _set(counts: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{kind}: {count:g}" for kind, count in counts.items()) + "}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
