"""Types and errors of a reader of KV parts (one KV head of a chunk each)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import PenstockError


class PartsError(PenstockError):
    """A part cannot be read: the directory, the device or the driver failed. The message names the
    cause.
    """


class PartMissingError(PartsError):
    """The tier does not have the part."""


class PartDamagedError(PartsError):
    """The part's checksum does not match its contents. Its file was quarantined (moved aside)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a disk tier: the last `blocks` blocks of a prefix, for one KV head and a range of
    layers.
    """

    digest: bytes
    """Digest of the prefix, 32 bytes."""
    blocks: int
    head: int
    """Number of the KV head, counted over the whole model."""
    layers: tuple[int, int]
    """First layer, and the one after the last; layers are numbered group after group."""


class DeviceMemory(Protocol):
    """Contiguous device memory, such as a tensor of torch or cupy."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Memory = memoryview | DeviceMemory
"""Writable memory of the host or of a device."""
