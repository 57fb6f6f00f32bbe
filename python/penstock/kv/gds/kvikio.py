"""Reads the payloads of KV parts with kvikio. GPUDirect Storage is used if driver, file system and
device support it, else POSIX calls and a bounce buffer. Host memory always uses POSIX calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

from penstock.kv.gds.contract import Memory, Part, PartsError

THREADS = 4
"""Number of kvikio's threads. Each reads one extent (the bytes of one block) at a time."""
DRIVER = "libcuda.so.1"
REMEDY = "install it with pip install 'penstock[gds]'"


class PartFiles(Protocol):
    """Files of a disk tier: `penstock._native.KvMover`."""

    def load_by(
        self,
        tier: int,
        part: tuple[bytes, int, int, tuple[int, int]],
        size: int,
        take: Callable[[int], int],
        /,
    ) -> None: ...


class KvikioParts:
    """Reader of the parts of one disk tier, which has the number `tier` in `files`."""

    def __init__(self, files: PartFiles, tier: int) -> None:
        """Raises PartsError, with the remedy, if kvikio or the driver is missing."""
        self._kvikio = _import()
        self._kvikio.defaults.set("num_threads", THREADS)
        self._files, self._tier = files, tier

    def load(self, part: Part, into: Sequence[Memory], checksum: Callable[[], int]) -> None:
        """Read a part: fill `into`, the memory of each of its blocks in order. `checksum` returns
        the CRC-64/NVME over all of that memory, and is compared with the file's.

        Raises PartMissingError, PartDamagedError or another PartsError. The contents of `into` are
        then unspecified, and no write to it is in progress.
        """

        def take(file: int) -> int:
            self._read(file, into)
            return checksum()

        name = (part.digest, part.blocks, part.head, part.layers)
        self._files.load_by(self._tier, name, sum(map(size, into)), take)

    def _read(self, file: int, into: Sequence[Memory]) -> None:
        """Fill all memories concurrently from a part's open file. The path under /proc refers to
        the file whose header was read, even after a rename, and keeps kvikio's cache of paths
        small.
        """
        from penstock._native import KV_PAYLOAD_AT

        offset = KV_PAYLOAD_AT
        with self._kvikio.CuFile(f"/proc/self/fd/{file}", "r") as opened:
            moving = []
            try:
                for memory in into:
                    # One task for each extent. If a read were split over several tasks, one could
                    # fail while others still write.
                    count = size(memory)
                    moving.append(opened.pread(memory, count, offset, max(count, 1)))
                    offset += count
            finally:
                done = _join(moving)
        if done != offset - KV_PAYLOAD_AT:
            raise OSError(f"kvikio read {done} bytes, not all")


def size(memory: Memory) -> int:
    """Size of `memory` in bytes."""
    if isinstance(memory, memoryview):
        return memory.nbytes
    interface = memory.__cuda_array_interface__
    return int(prod(interface["shape"])) * int(interface["typestr"][2:])


def _join(moving: Sequence[Any]) -> int:
    """Wait until all reads have ended, because they write to the memory until then. Returns the
    number of bytes read, or raises the first error.
    """
    done, failed = 0, None
    for future in moving:
        try:
            done += future.get()
        except Exception as error:  # noqa: BLE001 - kvikio raises many types; raised again below
            failed = failed or error
    if failed is not None:
        raise failed
    return done


def _import() -> Any:
    try:
        import kvikio
        import kvikio.defaults

        # kvikio reports a missing driver only on its first use of an address.
        ctypes.CDLL(DRIVER)
    except ModuleNotFoundError as error:
        raise PartsError(f"GPUDirect Storage needs kvikio ({error}): {REMEDY}") from error
    except Exception as error:
        raise PartsError(f"kvikio cannot be used: {error}") from error
    return kvikio
