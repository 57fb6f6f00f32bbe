"""Payloads moved by kvikio: GPUDirect Storage where driver, file system and device have it, POSIX
calls and a bounce buffer elsewhere. Host memory goes through POSIX calls.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import Any

from penstock.core import InvalidValueError
from penstock.gds.contract import DeviceMemory, HostCopy, Memory, Part, PartsError

PIECE = 4 << 20
"""Bytes of device memory that are copied to the host and summed at once."""
THREADS = 4
"""Parts that move at the same time, and extents of them: kvikio has as many threads of its own."""
DRIVER = "libcuda.so.1"
REMEDY = "install it with pip install 'penstock[gpu]'"


class KvikioParts:
    """One directory of a disk tier (`contract.DirectParts`).

    `options` is an object of `path`, `limit_bytes`, `daily_write_bytes` (or none), `chunk_blocks`
    (of a full chunk) and `identity`, the members of identity.json (docs/kv-format.md). `copy` is
    needed for device memory. With `posix`, kvikio is in its compatibility mode, for this whole
    process; otherwise it decides by itself.
    """

    def __init__(
        self, options: Mapping[str, object], copy: HostCopy | None = None, *, posix: bool = False
    ) -> None:
        """PartsError: kvikio or the driver is missing, or the directory cannot be used, and the
        remedy.
        """
        from penstock._native import KvParts

        self._kvikio = _import()
        if posix:
            self._kvikio.defaults.set("compat_mode", self._kvikio.CompatMode.ON)
        self._kvikio.defaults.set("num_threads", THREADS)
        try:
            self._parts = KvParts(json.dumps(options))
        except ValueError as error:
            raise PartsError(str(error)) from error
        self._copy = copy
        self._workers = ThreadPoolExecutor(THREADS, "kv-direct")

    def load(self, part: Part, into: Sequence[Memory]) -> Future[None]:
        extents = _extents(into, self._copy, written=True)
        return self._begin(self._parts.load, "r", part, extents)

    def store(self, part: Part, extents: Sequence[Memory]) -> Future[None]:
        return self._begin(
            self._parts.store, "r+", part, _extents(extents, self._copy, written=False)
        )

    def close(self) -> None:
        self._workers.shutdown(cancel_futures=True)

    def _begin(
        self, act: Callable[..., None], flags: str, part: Part, extents: list[_Extent]
    ) -> Future[None]:
        def move(file: int) -> int:
            self._move(file, flags, extents)
            return _checksum(extents)

        name = (part.digest, part.blocks, part.head, part.layers)
        return self._workers.submit(act, name, sum(extent.bytes for extent in extents), move)

    def _move(self, file: int, flags: str, extents: list[_Extent]) -> None:
        """All extents at once. The file is opened by its descriptor: it is the one whose header was
        read, also after a rename, and kvikio, which caches every path, has
        few.
        """
        offset = self._parts.PAYLOAD_AT
        with self._kvikio.CuFile(f"/proc/self/fd/{file}", flags) as opened:
            begin = opened.pread if flags == "r" else opened.pwrite
            moving = []
            try:
                for extent in extents:
                    # One task each: a call of several may end with an error while others of them
                    # still move.
                    moving.append(begin(extent.memory, extent.bytes, offset, max(extent.bytes, 1)))
                    offset += extent.bytes
            finally:
                done = _join(moving)
        if done != sum(extent.bytes for extent in extents):
            raise OSError(f"kvikio moved {done} bytes, not all")


class _Host:
    """An extent in memory of the host."""

    def __init__(self, memory: bytearray | memoryview, written: bool) -> None:
        self.memory = memoryview(memory).cast("B")
        if written and self.memory.readonly:
            raise InvalidValueError("memory", memory, "memory that may be written")
        self.bytes = len(self.memory)

    def pieces(self) -> Iterator[memoryview]:
        """Its bytes, in memory of the host; a piece is valid until the next."""
        yield self.memory


class _Device:
    """An extent in memory of a device."""

    def __init__(self, memory: DeviceMemory, copy: HostCopy | None, written: bool) -> None:
        if copy is None:
            raise InvalidValueError(
                "copy", copy, "a function that copies device memory to the host"
            )
        interface = memory.__cuda_array_interface__
        if written and interface["data"][1]:
            raise InvalidValueError("memory", memory, "memory that may be written")
        self.memory = memory
        self.bytes = prod(interface["shape"]) * int(interface["typestr"][2:])
        self._copy = copy

    def pieces(self) -> Iterator[memoryview]:
        room = memoryview(bytearray(min(PIECE, self.bytes)))
        for at in range(0, self.bytes, PIECE):
            piece = room[: self.bytes - at]
            self._copy(self.memory, at, piece)
            yield piece


_Extent = _Host | _Device


def _extents(memories: Sequence[Memory], copy: HostCopy | None, written: bool) -> list[_Extent]:
    return [
        _Host(memory, written)
        if isinstance(memory, bytearray | memoryview)
        else _Device(memory, copy, written)
        for memory in memories
    ]


def _checksum(extents: list[_Extent]) -> int:
    from penstock._native import KvChecksum

    checksum = KvChecksum()
    for extent in extents:
        for piece in extent.pieces():
            checksum.update(piece)
    return checksum.value()


def _join(moving: list[Any]) -> int:
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
