"""Location: which nodes or pairs explain that some measured pairs are slow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from penstock_ops.verify.between.rounds import Pair

SHARE = 0.75
"""A node explains its slow pairs if at least this share of its pairs is slow: one good value of a
slow node, or one bad of a good node, does not change the result.
"""


class Direction(StrEnum):
    BOTH = "both ways"
    SENDS = "from it"
    RECEIVES = "to it"


@dataclass(frozen=True, slots=True)
class SlowNode:
    node: int
    direction: Direction
    pairs: frozenset[Pair]
    """The slow pairs that it explains."""


@dataclass(frozen=True, slots=True)
class Location:
    nodes: tuple[SlowNode, ...] = ()
    pairs: tuple[Pair, ...] = ()
    """Slow pairs that no node explains."""
    is_everywhere: bool = False
    """Whether all measured pairs of three or more nodes are slow."""


def locate(measured: Collection[Pair], slow: Collection[Pair]) -> Location:
    """Explain the `slow` pairs among the `measured` ones by as few nodes as possible. The node that
    explains most comes first, and its pairs count for no other node.
    """
    left = set(slow) & set(measured)
    nodes = {node for pair in measured for node in pair}
    if len(nodes) > 2 and left == set(measured):
        return Location(is_everywhere=True)
    open_pairs = set(measured)
    found = []
    while blamed := _worst(open_pairs, left):
        found.append(blamed)
        left -= blamed.pairs
        open_pairs = {
            pair for pair in open_pairs if (blamed.node, blamed.direction) not in _roles(pair)
        }
    return Location(tuple(found), tuple(sorted(left)))


def _worst(measured: set[Pair], slow: set[Pair]) -> SlowNode | None:
    totals: Counter[tuple[int, Direction]] = Counter()
    bad: dict[tuple[int, Direction], set[Pair]] = defaultdict(set)
    for pair in measured:
        for role in _roles(pair):
            totals[role] += 1
            if pair in slow:
                bad[role].add(pair)
    candidates = []
    for (node, direction), pairs in bad.items():
        partners = {other for pair in pairs for other in pair} - {node}
        share = len(pairs) / totals[node, direction]
        if len(partners) >= 2 and share >= SHARE:
            candidates.append((len(pairs), share, -node, direction, pairs))
    if not candidates:
        return None
    _, _, negated, direction, pairs = max(candidates, key=lambda each: each[:3])
    return SlowNode(-negated, direction, frozenset(pairs))


def _roles(pair: Pair) -> Iterator[tuple[int, Direction]]:
    source, target = pair
    yield source, Direction.SENDS
    yield target, Direction.RECEIVES
    yield source, Direction.BOTH
    yield target, Direction.BOTH
