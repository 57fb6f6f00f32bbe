"""What the engine decided about the ranks, as executors and workers need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranks:
    """`tp` ranks in each of `pp` stages, counted stage after stage, and the room their messages need."""

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
    result_bytes: int

    @property
    def size(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class RankTask:
    """What one rank is told. Model and settings are in `config`: each rank opens the checkpoint itself."""

    rank: int
    reads: bool
    """Whether its results are wanted."""
    config: str
    """JSON of `EngineConfig`."""
    num_blocks: int
    shard: str
    wiring: str
    """JSON of `penstock_decoder::Wiring`."""
