"""The frames of docs/wire.md as plain data. ADD, TIERS, KV and KV_REPLY are in `penstock.core`."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core import (
    EngineStats,
    KvCommand,
    KvReply,
    Request,
    StepOutputs,
    TierKinds,
    TierReport,
)

WIRE_VERSION = 2


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection."""

    pid: int
    wire_version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the start ended after `seconds`."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes requests within these limits. `cache_identity` has 32 bytes."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue: int
    block_size: int
    num_blocks: int
    kv_bytes: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    cache_identity: bytes
    numerics: str
    isa: str
    threads: int
    kv_tiers: TierKinds = TierKinds.NONE
    """What stands behind the pool."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine cannot start or go on, and exits."""

    message: str


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step: counters after it and what its requests got. A heartbeat has no outputs.

    `step` counts from 1 and stays in heartbeats; `batch_tokens` were computed in `step_ms`
    milliseconds.
    """

    step: int
    stats: EngineStats
    batch_tokens: int = 0
    step_ms: float = 0.0
    outputs: StepOutputs = field(default_factory=StepOutputs)


@dataclass(frozen=True, slots=True)
class Cancel:
    """End these requests. Unknown ids are ignored: they may have just ended."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End all requests as cancelled and exit 0."""


EngineFrame = Hello | Stage | Ready | Fatal | Step | TierReport | KvReply
FrontFrame = Request | Cancel | Shutdown | KvCommand
