"""Layout of the ranks and sizes of their messages, all known before a rank loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLayout:
    """`tp` ranks in each of `pp` stages, numbered stage by stage."""

    tp: int
    pp: int
    reader: int
    """The rank whose results the engine reads."""
    shards: tuple[str, ...]
    """JSON of `penstock_decoder::Shard` for each rank."""
    group_numbers: int
    """Maximum number of float32 values that a rank contributes to one all-reduce."""
    rows_bytes: int
    """Maximum bytes of the hidden states (residual stream) that a pipeline stage sends to the
    next.
    """
    plan_bytes: int
    """Maximum bytes of a message to a rank: a plan, or a transfer if there are tiers."""
    result_bytes: int
    spare_messages: int = 0
    """Messages about transfers that may be in flight in addition to plans and results, in each
    direction.
    """
    own_sums: bool = False
    """Whether the backend does its own all-reduce. The ranks of a stage are then connected by
    streams instead of shared memory, even on one host.
    """

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def depth(self) -> int:
        """Number of plans in flight that keep every rank busy: one for each pipeline stage, but at
        least two.
        """
        return max(self.pp, 2)

    @property
    def plan_cells(self) -> int:
        """Cells (messages) of a ring towards the ranks: the plans and transfers in flight, and the
        message being written.
        """
        return self.depth + 1 + self.spare_messages

    @property
    def answer_cells(self) -> int:
        return self.depth + 2 + self.spare_messages

    def tasks(self, config: str, wirings: Iterable[str]) -> list[RankTask]:
        """A task for each rank, from the JSON of `EngineConfig` and of each rank's wiring."""
        return [
            RankTask(rank, rank == self.reader, config, shard, wiring)
            for rank, (shard, wiring) in enumerate(zip(self.shards, wirings, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class RankTask:
    """Start-up data of one rank. Each rank opens the checkpoint itself."""

    rank: int
    reads: bool
    """Whether the engine reads this rank's results."""
    config: str
    """JSON of `EngineConfig`."""
    shard: str
    wiring: str
    """JSON of `penstock_decoder::Wiring`."""
