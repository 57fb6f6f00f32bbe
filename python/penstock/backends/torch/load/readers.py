"""Threads that read byte ranges of weight files into host memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from torch import Tensor

from penstock.backends.torch.load.checkpoint import Stored, read_whole
from penstock.core import PenstockError


@dataclass(eq=False, slots=True)
class ReadRequest:
    """A pending read of a tensor's bytes."""

    stored: Stored
    start: int
    """Offset of the first byte in the tensor's data."""
    size: int
    target: Tensor | None
    """Destination as contiguous bytes; None: memory is allocated on the device when the first bytes
    arrive.
    """
    left: int
    """Bytes not yet read."""

    @property
    def offset(self) -> int:
        return self.stored.offset + self.start


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of a piece that belong to one read request, that is, to one tensor."""

    wanted: ReadRequest
    at: int
    """Offset of the part in the request's bytes."""
    where: int
    """Offset of the part in the piece."""
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A contiguous byte range of a file, read in one go."""

    offset: int
    size: int
    parts: Sequence[Part]
    """Parts of one or more tensors; they may overlap."""


class Readers:
    """A pool of threads that read pieces. `take` returns them in order of completion. Errors name
    the file, the tensor and the offset.
    """

    def __init__(self, threads: int) -> None:
        self._todo: SimpleQueue[tuple[Piece, Tensor] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Piece, Tensor] | BaseException] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.flying = 0
        """Number of pieces that `read` has queued and `take` has not returned."""
        try:
            for number in range(threads):
                thread = threading.Thread(target=self._work, name=f"read-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.close()
            raise PenstockError(f"no thread to read weights with: {error}") from error

    def read(self, piece: Piece, memory: Tensor) -> None:
        """Start to read a piece into `memory`, uint8 in host memory."""
        self.flying += 1
        self._todo.put((piece, memory))

    def take(self, *, wait: bool) -> tuple[Piece, Tensor] | None:
        """A completed piece; raises its error if it failed. None if `wait` is false and no piece is
        ready.
        """
        try:
            found = self._done.get(wait)
        except Empty:
            return None
        self.flying -= 1
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Stop the threads, each after its current piece."""
        try:
            while True:
                self._todo.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (given := self._todo.get()) is not None:
            try:
                _fill(*given)
            except BaseException as error:  # noqa: BLE001 - of any kind: it ends the load
                self._done.put(error)
            else:
                self._done.put(given)


def _fill(piece: Piece, memory: Tensor) -> None:
    view = memoryview(memory.numpy())[: piece.size]
    stored = piece.parts[0].wanted.stored
    if len(piece.parts) == 1:
        read_whole(stored, view, piece.offset)
        return
    try:
        read_whole(stored, view, piece.offset)
    except PenstockError:
        # Retry tensor by tensor, to name the tensor at fault.
        for part in piece.parts:
            end = part.where + part.size
            read_whole(part.wanted.stored, view[part.where : end], piece.offset + part.where)
        raise
