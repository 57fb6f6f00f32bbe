"""Interface of a disk tier for ranks whose pool is in the memory of an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import PenstockError


class PartsError(PenstockError):
    """The directory, the device or the driver failed: which, and why."""


class PartMissingError(PartsError):
    """No such part."""


class PartDamagedError(PartsError):
    """The checksum is wrong. The part was put aside."""


class PartsFullError(PartsError):
    """No room for it, in the directory or in the daily write budget."""


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


Memory = bytearray | memoryview | DeviceMemory


class HostCopy(Protocol):
    """How the owner of device memory reads it: checksums are computed by the host."""

    def __call__(self, memory: DeviceMemory, offset: int, into: memoryview) -> None:
        """Fills `into` with the bytes of `memory` from `offset` on; returns when they are there."""


class DirectParts(Protocol):
    """Knows no streams: kernels that use the memory have ended before it is handed over."""

    def load(self, part: Part, into: Sequence[Memory]) -> Future[None]:
        """Fills the extents of a part, one for each block in order, and verifies what arrived.

        The memory is lent until the future is done. It ends with PartMissingError, PartDamagedError
        or another PartsError, and then the contents of `into` are unspecified.
        """

    def store(self, part: Part, extents: Sequence[Memory]) -> Future[None]:
        """Keeps a part; done when others can load it. One that is stored stays as it is.

        The memory is lent until the future is done. It ends with PartsFullError or another
        PartsError, and then nothing of it is ever found.
        """

    def close(self) -> None:
        """Waits for parts in flight and cancels the others."""
