"""What a reader of parts takes, and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import PenstockError


class PartsError(PenstockError):
    """The directory, the device or the driver failed: which, and why."""


class PartMissingError(PartsError):
    """No such part."""


class PartDamagedError(PartsError):
    """The checksum is wrong. The part was put aside."""


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks that end a prefix, of one KV head, in some layers: one file."""

    digest: bytes
    """Name of the prefix, 32 bytes."""
    blocks: int
    head: int
    """Counted over the whole model."""
    layers: tuple[int, int]
    """The first and the one after the last."""


class DeviceMemory(Protocol):
    """Contiguous memory of a device: a tensor of torch or cupy."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Memory = memoryview | DeviceMemory
"""Memory of the host or of a device, which may be written."""
