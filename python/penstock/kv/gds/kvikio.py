"""Payloads read by kvikio: GPUDirect Storage where driver, file system and device have it, POSIX
calls and a bounce buffer elsewhere. Host memory goes through POSIX calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

from penstock.kv.gds.contract import Memory, Part, PartsError

THREADS = 4
"""Threads of kvikio, each of which moves an extent."""
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
    """Parts of the disk tier that has the number `tier` among those of `files`."""

    def __init__(self, files: PartFiles, tier: int) -> None:
        """PartsError: kvikio or the driver is missing, and the remedy."""
        self._kvikio = _import()
        self._kvikio.defaults.set("num_threads", THREADS)
        self._files, self._tier = files, tier

    def load(self, part: Part, into: Sequence[Memory], checksum: Callable[[], int]) -> None:
        """Fill the extents of a part, one for each block in order. `checksum` gives the CRC-64/NVME
        of all of them together, when they are filled.

        PartMissingError, PartDamagedError or another PartsError: the contents of `into` are
        unspecified, and nothing writes to them any more.
        """

        def take(file: int) -> int:
            self._read(file, into)
            return checksum()

        name = (part.digest, part.blocks, part.head, part.layers)
        self._files.load_by(self._tier, name, sum(map(size, into)), take)

    def _read(self, file: int, into: Sequence[Memory]) -> None:
        """All extents at once. The file is opened by its descriptor: it is the one whose header was
        read, also after a rename, and kvikio, which caches every path, has few.
        """
        from penstock._native import KV_PAYLOAD_AT

        offset = KV_PAYLOAD_AT
        with self._kvikio.CuFile(f"/proc/self/fd/{file}", "r") as opened:
            moving = []
            try:
                for memory in into:
                    # One task each: a call of several may end with an error while others of them
                    # still move.
                    count = size(memory)
                    moving.append(opened.pread(memory, count, offset, max(count, 1)))
                    offset += count
            finally:
                done = _join(moving)
        if done != offset - KV_PAYLOAD_AT:
            raise OSError(f"kvikio read {done} bytes, not all")


def size(memory: Memory) -> int:
    """Bytes of a memory."""
    if isinstance(memory, memoryview):
        return memory.nbytes
    interface = memory.__cuda_array_interface__
    return int(prod(interface["shape"])) * int(interface["typestr"][2:])


def _join(moving: Sequence[Any]) -> int:
    """Bytes moved, when all of it has ended: the memory is lent until then. Raises what failed
    first.
    """
    done, failed = 0, None
    for future in moving:
        try:
            done += future.get()
        except Exception as error:  # noqa: BLE001 - kvikio's are of many kinds; raised below
            failed = failed or error
    if failed is not None:
        raise failed
    return done


def _import() -> Any:
    try:
        import kvikio
        import kvikio.defaults

        # kvikio asks the driver whose memory an address is, and says only then that there is none.
        ctypes.CDLL(DRIVER)
    except ModuleNotFoundError as error:
        raise PartsError(f"GPUDirect Storage needs kvikio ({error}): {REMEDY}") from error
    except Exception as error:
        raise PartsError(f"kvikio cannot be used: {error}") from error
    return kvikio
