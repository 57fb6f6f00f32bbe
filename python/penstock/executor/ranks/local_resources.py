"""Shared memory and ports of one host, created for the ranks that communicate over them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.core import PenstockError

if TYPE_CHECKING:
    from penstock._native import AbortHandle, PrivateDirectory

MIB = 2**20
SIZE_FLAGS = "--max-num-batched-tokens, --max-num-seqs or --max-model-len"
"""Flags of the engine that determine the size of its shared memory."""


class SharedFiles:
    """Files for shared memory in `parent`, a directory in memory (tmpfs). The files are unlinked at
    once, so none is left behind even if the process is killed.

    This process, and processes that inherit `descriptors`, open them through /proc/self/fd. Other
    processes of the same user open them through the process id `process`, until `close`.
    """

    def __init__(self, parent: Path, process: str = "self") -> None:
        from penstock._native import PrivateDirectory

        self.descriptors: list[int] = []
        self._parent = parent
        self._process = process
        try:
            self._own: PrivateDirectory | None = PrivateDirectory(parent)
        except OSError as error:
            raise PenstockError(f"shared memory in {parent}: {error}") from error
        self._directory = self._own.path

    def ring(self, readers: int, cells: int, capacity: int) -> dict[str, Any]:
        """Create a ring; returns the common arguments of RingReader and RingWriter. `cells` is
        rounded up to a power of two.
        """
        from penstock._native import create_ring

        cells = 1 << (cells - 1).bit_length()
        file = self._directory / "ring"
        create_ring(str(file), readers, cells, capacity)
        return {"path": self._unlink(file), "slots": cells, "capacity": capacity}

    def group(self, ranks: int, capacity: int) -> dict[str, Any]:
        """Create the shared memory of a rank group; returns the arguments for opening it, without
        the rank. `capacity` is in float32 values.
        """
        from penstock._native import create_group

        file = self._directory / "group"
        create_group(str(file), ranks, capacity)
        return {"path": self._unlink(file), "ranks": ranks, "capacity": capacity}

    def abort_handles(self) -> list[AbortHandle]:
        """Handles that end all waits on the files, one for each file."""
        from penstock._native import AbortHandle

        return [AbortHandle(f"/proc/self/fd/{descriptor}") for descriptor in self.descriptors]

    def seal(self, size_flags: str = SIZE_FLAGS) -> None:
        """Remove the directory, and check that the file system has space for all files. Call it
        after the last file is created. Raises PenstockError, which names `size_flags` as a remedy.
        """
        self._remove_directory()
        needed = sum(os.fstat(descriptor).st_size for descriptor in self.descriptors)
        room = os.statvfs(self._parent)
        free = room.f_bavail * room.f_frsize
        if needed > free:
            raise PenstockError(
                f"{self._parent} has {free // MIB} MiB free, the ranks need {-(-needed // MIB)} MiB"
                f" of shared memory: enlarge it (docker run --shm-size), or lower {size_flags}"
            )

    def close(self) -> None:
        """Close the descriptors. Processes that have opened the files keep them."""
        self._remove_directory()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def _remove_directory(self) -> None:
        self._own = None

    def _unlink(self, file: Path) -> str:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self.descriptors.append(descriptor)
        file.unlink()
        return f"/proc/{self._process}/fd/{descriptor}"


class LocalResources:
    """Creates the resources (`topology.comm_resources`) of this host. Call `close` once the ranks
    have opened them.

    `process`: id under /proc through which other processes open the files, as for `SharedFiles`.
    """

    def __init__(self, directory: Path, process: str = "self") -> None:
        self.files = SharedFiles(directory, process)
        self._ports: list[socket.socket] = []

    def make(self, requests: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
        """Create resources, each ("group", ranks, capacity), ("ring", cells, capacity) or ("port",
        host).

        Returns fields of a rank's wiring, without rank, key and stream capacity. Raises
        PenstockError if this host does not have the address. Call `files.seal` afterwards.
        """
        return [self._make(*request) for request in requests]

    def close(self) -> None:
        self.files.close()
        for held in self._ports:
            held.close()
        self._ports.clear()

    def _make(self, kind: str, *sizes: Any) -> dict[str, Any]:
        if kind == "group":
            return {"kind": "memory", **self.files.group(*sizes)}
        if kind == "ring":
            return {"kind": "ring", **self.files.ring(1, *sizes)}
        return {"kind": "stream", "address": self._reserve(*sizes)}

    def _reserve(self, host: str) -> str:
        """Reserve a free port of `host`; returns `host:port`. A bound socket keeps the port
        reserved until the rank's listener shares the address.
        """
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._ports.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((host, 0))
        except OSError as error:
            raise PenstockError(f"cannot listen at {host}: {error.strerror}") from error
        return join_address(host, held.getsockname()[1])


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
