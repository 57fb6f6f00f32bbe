"""What the engine decided about the ranks, as executors and workers need it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranks:
    """`tp` ranks in each of `pp` stages, counted stage after stage, and the room their messages
    need.
    """

    tp: int
    pp: int
    reader: int
    """The rank that answers with tokens."""
    shards: tuple[str, ...]
    """JSON of `penstock_decoder::Shard` for each rank."""
    num_blocks: int
    """KV blocks, as many on each rank."""
    part_numbers: int
    """Most numbers that a rank hands to its tensor-parallel group at once."""
    rows_bytes: int
    """Most bytes that a stage hands to the next at once."""
    plan_bytes: int
    """Of a transfer too, where there are tiers."""
    result_bytes: int
    spare_messages: int = 0
    """Messages that may be under way each way beside plans and their answers: those of transfers.
    """

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def plan_slots(self) -> int:
        """Messages to the ranks that may be under way."""
        return self.pp + 1 + self.spare_messages

    @property
    def answer_slots(self) -> int:
        """Messages from a rank that may be under way."""
        return self.pp + 2 + self.spare_messages

    def tasks(self, config: str, wirings: Iterable[str]) -> list[RankTask]:
        """Of each rank, from the JSON of the `EngineConfig` and that of each one's wiring."""
        return [
            RankTask(rank, rank == self.reader, config, self.num_blocks, shard, wiring)
            for rank, (shard, wiring) in enumerate(zip(self.shards, wirings, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class RankTask:
    """What one rank is told. Model and settings are in `config`: each rank opens the checkpoint
    itself.
    """

    rank: int
    reads: bool
    """Whether its results are wanted."""
    config: str
    """JSON of `EngineConfig`."""
    num_blocks: int
    shard: str
    wiring: str
    """JSON of `penstock_decoder::Wiring`."""
