"""The grid of ranks and the sizes of their messages, all known before a rank loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLayout:
    """`tp` ranks in each of `pp` stages, numbered stage after stage."""

    tp: int
    pp: int
    reader: int
    """The rank that answers with tokens."""
    shards: tuple[str, ...]
    """JSON of `penstock_decoder::Shard` for each rank."""
    group_numbers: int
    """Most float32 values that a rank contributes to one all-reduce."""
    rows_bytes: int
    """Largest residual stream that a stage sends to the next."""
    plan_bytes: int
    """Largest plan, or transfer where there are tiers."""
    result_bytes: int
    spare_messages: int = 0
    """Transfers in flight beside the plans, each way."""
    own_sums: bool = False
    """Whether the ranks of a stage sum over streams on one host too, not in shared memory."""

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def depth(self) -> int:
        """Plans in flight that keep every rank busy: one for each stage, two with one stage."""
        return max(self.pp, 2)

    @property
    def plan_cells(self) -> int:
        """Ring cells for messages to the ranks: plans in flight and the one being written."""
        return self.depth + 1 + self.spare_messages

    @property
    def answer_cells(self) -> int:
        return self.depth + 2 + self.spare_messages

    def tasks(self, config: str, wirings: Iterable[str]) -> list[RankTask]:
        """A task for each rank, from JSON of `EngineConfig` and of each rank's wiring."""
        return [
            RankTask(rank, rank == self.reader, config, shard, wiring)
            for rank, (shard, wiring) in enumerate(zip(self.shards, wirings, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class RankTask:
    """The start of one rank. Each rank opens the checkpoint itself."""

    rank: int
    reads: bool
    """Whether its results are sent to the engine."""
    config: str
    """JSON of `EngineConfig`."""
    shard: str
    wiring: str
    """JSON of `penstock_decoder::Wiring`."""
