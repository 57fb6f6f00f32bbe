"""Directories for checkpoints of random numbers, with cleanup."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SPARE = 8 << 30
"""Memory to leave free when a checkpoint is kept in memory."""


class NoRoomError(Exception):
    """Neither memory nor any file system has room for the checkpoint."""


@contextmanager
def room_for(size: int, owner: int) -> Iterator[Path]:
    """A temporary directory for `size` bytes: in memory, so that no disk is measured, else on the
    disk of temporary files. NoRoomError if neither has room.
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
    """A directory from which programs can be loaded, which a file system in memory may forbid."""
    with tempfile.TemporaryDirectory(prefix=_prefix(owner)) as directory:
        yield Path(directory)


def sweep(owner: int) -> None:
    """Remove leftovers of killed parts. `owner`: the process that started them."""
    for place in (MEMORY, Path(tempfile.gettempdir())):
        for left in place.glob(f"{_prefix(owner)}*"):
            shutil.rmtree(left, ignore_errors=True)


def _prefix(owner: int) -> str:
    return f"penstock-gpu-{owner}-"
