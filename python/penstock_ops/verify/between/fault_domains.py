"""Fault domains: the findings of a check of pairs, each for the node, the pair, or all nodes that
the slow pairs have in common. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock_ops.verify.between.location import Direction, SlowNode, locate
from penstock_ops.verify.between.measurements import Measurements
from penstock_ops.verify.between.rounds import Pair
from penstock_ops.verify.finding import SEVERITY, Bound, Finding, Layer, Status


class Scope(StrEnum):
    NODE = "node"
    PAIR = "pair"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class FaultDomain:
    """The smallest part of the network that explains some slow pairs: a node, a pair, or all."""

    scope: Scope
    name: str
    pairs: tuple[Pair, ...]
    direction: str = ""
    """A Direction if only one of a node's directions is slow."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A check, with causes and remedies by Scope or Direction; NODE's are the default."""

    check: str
    cause: Mapping[str, str]
    remedy: Mapping[str, str]

    def of(self, texts: Mapping[str, str], domain: FaultDomain) -> str:
        return texts.get(domain.direction) or texts.get(domain.scope) or texts[Scope.NODE]


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


def fault_domains(
    found: Measurements, measured: Collection[Pair], slow: Collection[Pair]
) -> list[FaultDomain]:
    """The fault domains that explain the slow pairs."""
    location = locate(measured, slow)
    if location.is_everywhere:
        return [FaultDomain(Scope.EVERYWHERE, everyone(found), tuple(sorted(slow)))]
    nodes = [_node(found, each) for each in location.nodes]
    pairs = [FaultDomain(Scope.PAIR, pair_name(found, pair), (pair,)) for pair in location.pairs]
    return nodes + pairs


def _node(found: Measurements, node: SlowNode) -> FaultDomain:
    direction = "" if node.direction is Direction.BOTH else node.direction.value
    return FaultDomain(Scope.NODE, found.nodes[node.node], tuple(sorted(node.pairs)), direction)


def domain_findings(
    found: Measurements,
    measured: Collection[Pair],
    slow: Collection[Pair],
    fault: Fault,
    status: Status,
    summary: Callable[[Collection[Pair]], str],
    layer: Layer = Layer.FABRIC,
) -> Iterator[Finding]:
    """A finding for each fault domain of the slow pairs."""
    for domain in fault_domains(found, measured, slow):
        yield replace(_finding(domain, fault, status, summary(domain.pairs)), layer=layer)


def measured_findings(
    found: Measurements,
    values: Mapping[Pair, float],
    slow: Collection[Pair],
    fault: Fault,
    bound: Bound,
    what: str,
) -> Iterator[Finding]:
    """Like `domain_findings`, with the worst value of each domain, which gives the status; one
    finding that passes if no pair is slow.
    """
    worst = max if bound.is_ceiling else min

    def text(value: float) -> str:
        return f"{what}: {value:.4g} {bound.unit}"

    if values and not slow:
        value = worst(values.values())
        yield finding(
            fault.check, everyone(found), Status.PASS, text(value), measured=value, bound=bound
        )
    for domain in fault_domains(found, values, slow):
        value = worst(values[pair] for pair in domain.pairs)
        status = max(bound.status(value), Status.WARN, key=SEVERITY.index)
        yield replace(_finding(domain, fault, status, text(value)), measured=value, bound=bound)


def _finding(domain: FaultDomain, fault: Fault, status: Status, text: str) -> Finding:
    return finding(
        fault.check,
        domain.name,
        status,
        f"{text} ({domain.direction})" if domain.direction else text,
        cause=fault.of(fault.cause, domain),
        remedy=fault.of(fault.remedy, domain),
    )
