"""Which node holds which stages: in order, as evenly as whole stages allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.core import Ranks


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    address: str

    def __str__(self) -> str:
        return f"node {self.id} ({self.address})"


def stages(pp: int, nnodes: int) -> list[range]:
    """Of each node; the first ones hold a stage more where `pp` is no multiple."""
    least, more = divmod(pp, nnodes)
    starts = [node * least + min(node, more) for node in range(nnodes + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def ranks_of(ranks: Ranks, nnodes: int) -> list[range]:
    """Of each node."""
    return [range(held.start * ranks.tp, held.stop * ranks.tp) for held in stages(ranks.pp, nnodes)]


def hosts(ranks: Ranks, nodes: Sequence[Node]) -> list[Node]:
    """Of each rank."""
    held = ranks_of(ranks, len(nodes))
    return [node for node, own in zip(nodes, held, strict=True) for _ in own]
