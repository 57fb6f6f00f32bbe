"""Assignment of ranks to nodes: consecutive ranks per node, as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import ranks_of_nodes
from penstock.executor.ranks import RankLayout


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    address: str

    def __str__(self) -> str:
        return f"node {self.id} ({self.address})"


def ranks_of(layout: RankLayout, nnodes: int) -> list[range]:
    """The ranks of each of `nnodes` nodes."""
    return ranks_of_nodes(layout.tp, layout.pp, nnodes)


def hosts(layout: RankLayout, nodes: Sequence[Node]) -> list[Node]:
    """The node of each rank."""
    held = ranks_of(layout, len(nodes))
    return [node for node, own in zip(nodes, held, strict=True) for _ in own]
