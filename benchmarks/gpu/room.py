"""Places for checkpoints of random numbers, and nothing left behind in them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SPARE = 8 << 30
"""Memory that is left to everything else when a checkpoint is kept in memory."""


class NoRoomError(Exception):
    """No file system and no memory has room for the checkpoint."""


@contextmanager
def room_for(size: int, owner: int) -> Iterator[Path]:
    """An empty directory for `size` bytes, removed at the end: in memory, so that no disk is
    measured, else on the disk of temporary files. NoRoomError where neither has room.
    """
    from penstock.config.machine import available_memory

    places = [MEMORY] if available_memory() > size + SPARE else []
    for place in [*places, Path(tempfile.gettempdir())]:
        if place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > size:
            with tempfile.TemporaryDirectory(prefix=_prefix(owner), dir=place) as directory:
                yield Path(directory)
            return
    raise NoRoomError(f"no room for a checkpoint of {size / 1e9:.0f} GB in memory or on the disk")


@contextmanager
def small_room(owner: int) -> Iterator[Path]:
    """One that programs may be loaded from, which memory may forbid."""
    with tempfile.TemporaryDirectory(prefix=_prefix(owner)) as directory:
        yield Path(directory)


def sweep(owner: int) -> None:
    """Remove what parts that were killed have left: `owner` is the process that started them."""
    for place in (MEMORY, Path(tempfile.gettempdir())):
        for left in place.glob(f"{_prefix(owner)}*"):
            shutil.rmtree(left, ignore_errors=True)


def _prefix(owner: int) -> str:
    return f"penstock-gpu-{owner}-"
