"""Where the stages go. Ranks of a stage share memory, so a stage is one bundle: on one node or
nowhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import PenstockError, Ranks
from penstock.executor.ray.cluster import Node

LOOK = 1.0
"""Seconds between looks at what is there, and before a wait is mentioned."""

log = logging.getLogger("penstock.executor")


class Cluster(Protocol):
    here: str

    def nodes(self) -> list[Node]: ...

    def free_cpus(self) -> float: ...

    def reserve(self, bundles: Sequence[dict[str, float]], strategy: str) -> Any: ...

    def reserved(self, group: Any, timeout: float) -> bool: ...

    def places(self, group: Any) -> list[str]: ...

    def release(self, group: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a rank."""

    bundle: int
    node: Node


@dataclass(frozen=True, slots=True)
class Placement:
    group: Any
    seats: tuple[Seat, ...]
    """Of each rank."""


def place(cluster: Cluster, ranks: Ranks, strategy: str, deadline: float) -> Placement:
    """Reserve a CPU for each rank; after `deadline` seconds PenstockError says what is missing."""
    group = cluster.reserve(
        [{"CPU": float(ranks.tp)}] * ranks.pp, strategy.replace("-", "_").upper()
    )
    began, said = time.monotonic(), False
    try:
        while not cluster.reserved(group, min(LOOK, deadline)):
            if time.monotonic() - began >= deadline:
                raise PenstockError(
                    f"{shortage(cluster, ranks, strategy)}; waited {deadline:.0f} s"
                )
            if not said:
                log.warning("waiting for room: %s", shortage(cluster, ranks, strategy))
                said = True
        return Placement(group, seats(ranks, cluster.places(group), cluster.nodes(), cluster.here))
    except BaseException:
        cluster.release(group)
        raise


def seats(
    ranks: Ranks, places: Sequence[str], nodes: Sequence[Node], here: str
) -> tuple[Seat, ...]:
    """Stages node by node, the engine's own node first, so that the fewest neighbours are on
    different nodes.

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
    return tuple(Seat(bundle, known[places[bundle]]) for bundle in order for _ in range(ranks.tp))


def shortage(cluster: Cluster, ranks: Ranks, strategy: str) -> str:
    """What the ranks need and what the cluster has, in one line, with the way out."""
    nodes = cluster.nodes()
    least = {"spread": 1, "pack": 1, "strict-pack": 1, "strict-spread": ranks.pp}[strategy]
    each = ranks.size if strategy == "strict-pack" else ranks.tp
    needs = f"{ranks.size} ranks need {ranks.size} x {{CPU: 1}} with --placement {strategy}"
    if least > 1:
        needs += f" on {least} nodes"
    if each > 1:
        needs += f", {each} of them on one node"
    has = ", ".join(
        f"{node.address} {{CPU: {node.cpus:g}}}" for node in sorted(nodes, key=lambda n: n.address)
    )
    free = f"{cluster.free_cpus():g} CPUs are free"
    there = f"the cluster has {_count(len(nodes), 'node')} ({has}), {free}"
    return f"{needs}; {there}. {_remedy(ranks, nodes, least, each)}"


def _remedy(ranks: Ranks, nodes: Sequence[Node], least: int, each: int) -> str:
    if len(nodes) < least:
        return "Add nodes or choose another --placement"
    if max((node.cpus for node in nodes), default=0.0) < each:
        # Sums of a stage go through shared memory, so it cannot be spread.
        return (
            "Add a larger node, or lower --tensor-parallel-size: the ranks of a stage share memory"
        )
    if sum(node.cpus for node in nodes) < ranks.size:
        return "Add nodes or CPUs (ray start --num-cpus counts what may be used, not what is there)"
    return "Something else holds them: look at `ray status`"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
