"""Types and errors of a reader of parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import PenstockError


class PartsError(PenstockError):
    """The directory, the device or the driver failed. The message says which, and why."""


class PartMissingError(PartsError):
    """The part does not exist."""


class PartDamagedError(PartsError):
    """The checksum does not match. The part was quarantined."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file: the last blocks of a prefix, for one KV head and a range of layers."""

    digest: bytes
    """Digest of the prefix, 32 bytes."""
    blocks: int
    head: int
    """Index over the whole model."""
    layers: tuple[int, int]
    """First layer, and one past the last."""


class DeviceMemory(Protocol):
    """Contiguous device memory, such as a tensor of torch or cupy."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Memory = memoryview | DeviceMemory
"""Writable memory of the host or of a device."""
