"""Places: the findings of a check of pairs, each for the node, the pair, or all nodes that the slow
pairs have in common. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock_ops.verify.between.location import Direction, SlowNode, locate
from penstock_ops.verify.between.measurements import Measurements
from penstock_ops.verify.between.rounds import Pair
from penstock_ops.verify.finding import SEVERITY, Bound, Finding, Layer, Status


class Kind(StrEnum):
    NODE = "node"
    PAIR = "pair"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class Place:
    kind: Kind
    name: str
    pairs: tuple[Pair, ...]
    direction: str = ""
    """A Direction if only one of a node's directions is slow."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A check, with causes and remedies by Kind or Direction. Those of NODE are the default."""

    check: str
    cause: Mapping[str, str]
    remedy: Mapping[str, str]

    def of(self, texts: Mapping[str, str], place: Place) -> str:
        return texts.get(place.direction) or texts.get(place.kind) or texts[Kind.NODE]


def finding(
    check: str,
    node: str,
    status: Status,
    summary: str,
    *,
    layer: Layer = Layer.FABRIC,
    measured: float | None = None,
    bound: Bound | None = None,
    cause: str = "",
    remedy: str = "",
) -> Finding:
    return Finding(check, layer, node, "", status, summary, measured, bound, cause, remedy)


def everyone(found: Measurements) -> str:
    return f"all {len(found.nodes)} nodes" if len(found.nodes) > 1 else found.nodes[0]


def pair_name(found: Measurements, pair: Pair) -> str:
    return f"{found.nodes[pair[0]]} -> {found.nodes[pair[1]]}"


def places(found: Measurements, measured: Collection[Pair], slow: Collection[Pair]) -> list[Place]:
    """What explains the slow pairs."""
    location = locate(measured, slow)
    if location.is_everywhere:
        return [Place(Kind.EVERYWHERE, everyone(found), tuple(sorted(slow)))]
    nodes = [_node(found, each) for each in location.nodes]
    pairs = [Place(Kind.PAIR, pair_name(found, pair), (pair,)) for pair in location.pairs]
    return nodes + pairs


def _node(found: Measurements, node: SlowNode) -> Place:
    direction = "" if node.direction is Direction.BOTH else node.direction.value
    return Place(Kind.NODE, found.nodes[node.node], tuple(sorted(node.pairs)), direction)


def located(
    found: Measurements,
    measured: Collection[Pair],
    slow: Collection[Pair],
    fault: Fault,
    status: Status,
    summary: Callable[[Collection[Pair]], str],
    layer: Layer = Layer.FABRIC,
) -> Iterator[Finding]:
    """A finding for each place of slow pairs."""
    for place in places(found, measured, slow):
        yield replace(_of_place(place, fault, status, summary(place.pairs)), layer=layer)


def valued(
    found: Measurements,
    values: Mapping[Pair, float],
    slow: Collection[Pair],
    fault: Fault,
    bound: Bound,
    what: str,
) -> Iterator[Finding]:
    """Like `located`, with the worst value of each place, which gives the status; one finding that
    passes if no pair is slow.
    """
    worst = max if bound.is_ceiling else min

    def text(value: float) -> str:
        return f"{what}: {value:.4g} {bound.unit}"

    if values and not slow:
        value = worst(values.values())
        yield finding(
            fault.check, everyone(found), Status.PASS, text(value), measured=value, bound=bound
        )
    for place in places(found, values, slow):
        value = worst(values[pair] for pair in place.pairs)
        status = max(bound.status(value), Status.WARN, key=SEVERITY.index)
        yield replace(_of_place(place, fault, status, text(value)), measured=value, bound=bound)


def _of_place(place: Place, fault: Fault, status: Status, text: str) -> Finding:
    return finding(
        fault.check,
        place.name,
        status,
        f"{text} ({place.direction})" if place.direction else text,
        cause=fault.of(fault.cause, place),
        remedy=fault.of(fault.remedy, place),
    )
