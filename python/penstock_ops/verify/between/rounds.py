"""Which nodes measure at the same time: rounds of disjoint pairs, and halves of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Pair = tuple[int, int]
"""Sender and receiver, by their positions in the list of nodes."""
FULL = 16
"""Maximum number of nodes whose pairs are all measured. With more, each node is measured with
log2(n) others, which suffices to tell a slow node from a slow pair.
"""
SMALL = 3
"""Nodes of a group that cannot be halved, because a collective needs two."""


def round_robin(nodes: int) -> list[list[Pair]]:
    """All pairs of `nodes` in rounds of disjoint pairs: n - 1 rounds if n is even, else n, in each
    of which one node rests (the circle method of tournaments).
    """
    size = nodes + nodes % 2
    ring = list(range(size))
    found = []
    for _ in range(size - 1):
        pairs = [(ring[at], ring[size - 1 - at]) for at in range(size // 2)]
        found.append([pair for pair in pairs if max(pair) < nodes])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def schedule(nodes: int, full: int = FULL) -> list[list[Pair]]:
    """Rounds of disjoint pairs, both directions of a pair in successive rounds: all pairs, or about
    log2(n) partners of each node if there are more than `full` nodes.
    """
    rounds = round_robin(nodes)
    if nodes > full:
        rounds = rounds[: (nodes - 1).bit_length()]
    return [turned for pairs in rounds for turned in (pairs, [(b, a) for a, b in pairs]) if pairs]


def slow_members(
    members: Sequence[int], are_slow: Callable[[list[list[int]]], list[bool]]
) -> tuple[list[int], bool]:
    """Nodes that make the collective of a slow group slow, found by halving, in about log2(n)
    rounds for one slow node. `are_slow` measures disjoint groups of two or more nodes at the same
    time.

    The second value is True if a group is slow and neither of its halves is: then it is not a node,
    but what the halves share.
    """
    healthy: list[int] = []
    suspects: list[list[int]] = [list(members)]
    is_between = False
    while groups := [group for group in suspects if len(group) > SMALL]:
        suspects = [group for group in suspects if len(group) <= SMALL]
        halves = [half for group in groups for half in _halves(group)]
        slow = are_slow(halves)
        for left in range(0, len(halves), 2):
            is_between |= not (slow[left] or slow[left + 1])
        suspects += [half for half, is_slow in zip(halves, slow, strict=True) if is_slow]
        healthy += [
            node for half, is_slow in zip(halves, slow, strict=True) if not is_slow for node in half
        ]
    return _among(suspects, healthy, are_slow), is_between


def _halves(group: list[int]) -> list[list[int]]:
    middle = len(group) // 2
    return [group[:middle], group[middle:]]


def _among(
    suspects: list[list[int]],
    healthy: list[int],
    are_slow: Callable[[list[list[int]]], list[bool]],
) -> list[int]:
    """The slow nodes of small groups: each is measured with a healthy node. All of them where no
    node is known to be healthy.
    """
    rest = [node for group in suspects for node in group]
    found = []
    while rest and healthy:
        tested, rest = rest[: len(healthy)], rest[len(healthy) :]
        groups = [[node, partner] for node, partner in zip(tested, healthy, strict=False)]
        found += [node for node, slow in zip(tested, are_slow(groups), strict=True) if slow]
    return sorted(found + rest)
