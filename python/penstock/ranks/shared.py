"""Shared memory that nobody has to remove: files without a name, handed to processes as
descriptors.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core import PenstockError

if TYPE_CHECKING:
    from penstock._native import Fence

MIB = 2**20


class SharedFiles:
    """Groups and rings on `parent`, a directory in memory.

    Each file loses its name as soon as it exists. It is opened by way of /proc/self/fd, here and in
    processes that inherit `descriptors`, so even a kill leaves nothing behind. Processes that do
    not inherit them, but belong to the same user, find them under the number of this `process`
    while it keeps them open.
    """

    def __init__(self, parent: Path, process: str = "self") -> None:
        self.descriptors: list[int] = []
        self._sealed = False
        self._parent = parent
        self._process = process
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="penstock-", dir=parent))
        except OSError as error:
            raise PenstockError(f"shared memory in {parent}: {error.strerror}") from error

    def ring(self, readers: int, slots: int, capacity: int) -> dict[str, Any]:
        """What a RingReader or RingWriter is made with, but for its own part; `slots` is rounded
        up.
        """
        from penstock._native import create_ring

        slots = 1 << (slots - 1).bit_length()
        file = self._directory / "ring"
        create_ring(str(file), readers, slots, capacity)
        return {"path": self._nameless(file), "slots": slots, "capacity": capacity}

    def group(self, ranks: int, capacity: int) -> dict[str, Any]:
        """What a group is joined with, but for the rank; `capacity` counts numbers."""
        from penstock._native import create_group

        file = self._directory / "group"
        create_group(str(file), ranks, capacity)
        return {"path": self._nameless(file), "ranks": ranks, "capacity": capacity}

    def fences(self) -> list[Fence]:
        """Through which all waits end, for each file one."""
        from penstock._native import Fence

        return [Fence(f"/proc/self/fd/{descriptor}") for descriptor in self.descriptors]

    def seal(self) -> None:
        """There will be no more files. PenstockError when the memory behind them is too small."""
        self._remove_directory()
        needed = sum(os.fstat(descriptor).st_size for descriptor in self.descriptors)
        room = os.statvfs(self._parent)
        free = room.f_bavail * room.f_frsize
        if needed > free:
            raise PenstockError(
                f"{self._parent} has {free // MIB} MiB free, the ranks need {-(-needed // MIB)} MiB of "
                "shared memory: enlarge it (docker run --shm-size), or lower --max-num-batched-tokens"
            )

    def close(self) -> None:
        """Whoever has opened a file keeps it."""
        self._remove_directory()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def _remove_directory(self) -> None:
        if not self._sealed:
            os.rmdir(self._directory)
            self._sealed = True

    def _nameless(self, file: Path) -> str:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self.descriptors.append(descriptor)
        file.unlink()
        return f"/proc/{self._process}/fd/{descriptor}"
