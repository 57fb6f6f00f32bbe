"""What a worker says about itself once its part of the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    fingerprint: bytes
    """32 bytes that stand for the checkpoint."""
    numerics: str
    """Weight forms, activation form and KV form, such as `w4+w8/int8/kv-bf16`."""
    isa: str
    threads: int
    weights_bytes: int
    stages: tuple[tuple[str, float, str], ...] = ()
    """Name, seconds and detail of each stage of loading."""
