"""Assignment of stages to nodes: in order, as evenly as whole stages allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import stages_of_nodes
from penstock.ranks import RankLayout


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    address: str

    def __str__(self) -> str:
        return f"node {self.id} ({self.address})"


def ranks_of(layout: RankLayout, nnodes: int) -> list[range]:
    """Ranks of each node."""
    tp = layout.tp
    return [range(held.start * tp, held.stop * tp) for held in stages_of_nodes(layout.pp, nnodes)]


def hosts(layout: RankLayout, nodes: Sequence[Node]) -> list[Node]:
    """Node of each rank."""
    held = ranks_of(layout, len(nodes))
    return [node for node, own in zip(nodes, held, strict=True) for _ in own]
