"""What a worker says about itself once its model is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    cache_identity: bytes
    """32 bytes that stand for everything which changes the bytes of a KV block."""
    numerics: str
    isa: str
    threads: int
    weights_bytes: int
    num_blocks: int
    block_bytes: int
    max_model_len: int
    stages: tuple[tuple[str, float, str], ...] = ()
    """Name, seconds and detail of each stage of loading."""
    notice: str = ""
    """What the worker lowered and why, or nothing."""
