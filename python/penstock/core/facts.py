"""Facts about one rank's loaded part of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numerics:
    """Forms of weights, activations and KV."""

    weights: tuple[str, ...]
    """Sorted; empty for a rank without layers and output head."""
    activations: str
    kv: str

    def __str__(self) -> str:
        """Such as `w4+w8/int8/kv-bf16`."""
        return f"{'+'.join(self.weights)}/{self.activations}/kv-{self.kv}"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    fingerprint: bytes
    """32 bytes that identify the checkpoint."""
    numerics: Numerics
    device: str
    """Instruction set or accelerator."""
    threads: int
    weights_bytes: int
    stages: tuple[tuple[str, float, str], ...] = ()
    """Name, seconds and detail of each stage of loading."""
    own_memory: bool = False
    """Whether the rank's memory is its device's: the KV pool may take all that is free."""
    host_memory: int = 0
    """Bytes of its host that a rank may take, as of its start; 0: not known."""
    pauses: int = 0
    """Plans without sequences that the rank makes use of, when no request is there: each is time
    for a part of what it left for later. The other ranks get them too.
    """
    host: str = ""
    """Address of the rank's node, where there are several nodes."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    """Absolute indices of this rank's layers in the group."""
    block_bytes: int
    """One block of all of `layers` on this rank; 0 without layers."""
    window: int | None = None
    """Tokens that a token sees, itself included; None for all."""
    chunked: bool = False
    """The window does not slide: a token sees those of its own chunk of this size."""


@dataclass(frozen=True, slots=True)
class KvSpec:
    """Shape of a rank's KV. All ranks have the same groups (windows, order)."""

    block_size: int
    groups: tuple[KvGroup, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank's answer once its weights are loaded, before KV blocks are allocated."""

    facts: WorkerFacts
    kv_spec: KvSpec
    free_memory: int
    """Bytes that this rank may allocate."""
