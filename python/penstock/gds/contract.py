"""What a rank whose pool is in an accelerator's memory asks of a disk tier, and what it may hear."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import PenstockError


class PartsError(PenstockError):
    """The directory, the device or the driver did not do it: which, and why. Raised by the
    extension too.
    """


class PartMissingError(PartsError):
    """Not there."""


class PartDamagedError(PartsError):
    """What was there is not what was written. It has been put aside."""


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
    """Knows no streams: what computes or reads the memory has ended before it is handed over."""

    def load(self, part: Part, into: Sequence[Memory]) -> Future[None]:
        """Fills the extents of a part, one for each block in order, and verifies what arrived.

        The memory is lent until the future is done. It ends with PartMissingError, PartDamagedError
        or another PartsError, and then the contents of `into` are unspecified.
        """

    def store(self, part: Part, extents: Sequence[Memory]) -> Future[None]:
        """Keeps a part; done when others can load it. One that is there already is left as it is.

        The memory is lent until the future is done. It ends with PartsFullError or another
        PartsError, and then nobody finds anything of it.
        """

    def close(self) -> None:
        """What was begun ends first; what was not is cancelled."""
