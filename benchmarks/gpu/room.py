"""Temporary directories for checkpoints of random numbers, and their removal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SPARE = 8 << 30
"""Bytes of memory that must stay free if a checkpoint is kept in memory."""


class NoRoomError(Exception):
    """Neither memory nor any file system has room for the checkpoint."""


@contextmanager
def room_for(size: int, owner: int) -> Iterator[Path]:
    """A temporary directory with room for `size` bytes. It is in memory if possible, so that no
    disk is measured, else on the disk for temporary files. NoRoomError if neither has room.
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
    """A temporary directory from which programs can be loaded. A file system in memory may forbid
    this.
    """
    with tempfile.TemporaryDirectory(prefix=_prefix(owner)) as directory:
        yield Path(directory)


def sweep(owner: int) -> None:
    """Remove directories that killed parts have left. `owner`: id of the process that started the
    parts.
    """
    for place in (MEMORY, Path(tempfile.gettempdir())):
        for left in place.glob(f"{_prefix(owner)}*"):
            shutil.rmtree(left, ignore_errors=True)


def _prefix(owner: int) -> str:
    return f"penstock-gpu-{owner}-"
