"""Facts about one rank's share of the model, once it is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numerics:
    """Number formats of weights, activations and KV."""

    weights: tuple[str, ...]
    """Formats of the rank's matrices, sorted; empty on a rank that has neither layers nor the
    output head.
    """
    activations: str
    kv: str

    def __str__(self) -> str:
        """For example `w4+w8/int8/kv-bf16`."""
        return f"{'+'.join(self.weights)}/{self.activations}/kv-{self.kv}"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    fingerprint: bytes
    """32 bytes that identify the checkpoint (a hash of its tensors)."""
    numerics: Numerics
    device: str
    """The device for the log: the CPU's instruction set, or the GPU."""
    threads: int
    weights_bytes: int
    stages: tuple[tuple[str, float, str], ...] = ()
    """Name, seconds and detail text of each loading stage."""
    own_memory: bool = False
    """Whether the device has its own memory (a GPU), which the KV pool may use completely."""
    host_memory: int = 0
    """Host memory available to the rank in bytes, measured at its start; 0 if unknown."""
    pauses: int = 0
    """Number of plans without sequences (pauses) that the rank can use while no request is active.
    During each, the rank does one piece of deferred start-up work. All other ranks get these plans
    too.
    """
    host: str = ""
    """Address of the rank's node; empty on a single node."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table."""

    layers: tuple[int, ...]
    """Indices, in the whole model, of the group's layers on this rank."""
    block_bytes: int
    """Bytes of one block on this rank, for all of `layers` together; 0 without layers."""
    window: int | None = None
    """Number of tokens that a token attends to, itself included; None for all."""
    chunked: bool = False
    """Chunked attention: the window does not slide, and a token attends only to its own chunk of
    this size.
    """


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Sequence state of the recurrent layers: for each sequence one value of a fixed size, which
    every token replaces. A state slot holds the state of all these layers after one token.
    """

    layers: tuple[int, ...]
    """Indices, in the whole model, of the recurrent layers on this rank."""
    units: int
    """Number of units of a layer's state on this rank. Tensor parallelism cuts between units; they
    have the same size in all layers.
    """
    slot_bytes: int
    """Bytes of one state slot on this rank, for all of `layers` together; 0 without layers."""


@dataclass(frozen=True, slots=True)
class KvSpec:
    """Shape of a rank's KV cache. All ranks have the same groups, in the same order."""

    block_size: int
    groups: tuple[KvGroup, ...]
    state: StateSpec | None = None
    """None if no layer of the model has sequence state."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Sizes of the pools that every rank allocates before the first step."""

    blocks: tuple[int, ...]
    """Number of blocks of each KV group."""
    states: int = 0
    """Number of state slots; 0 if the model has no sequence state."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank's reply after it has loaded its weights, before KV blocks are allocated."""

    facts: WorkerFacts
    kv_spec: KvSpec
    free_memory: int
    """Bytes that this rank may allocate for its KV pools."""
