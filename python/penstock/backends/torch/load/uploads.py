"""Uploads weights from files to a device: threads read, and the caller's thread starts the copies.

Requests are queued first, then read in file order, with adjacent ranges merged into one read. A GPU
receives them through a ring of pinned buffers; for torch's CPU device they are read in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from penstock.backends.torch.load.checkpoint import Stored
from penstock.backends.torch.load.readers import Part, Piece, Readers, ReadRequest
from penstock.backends.torch.runtime import runtime
from penstock.core import PenstockError

READERS = 8
"""Number of reader threads. A core copies 5 to 10 GB/s out of the page cache, and a GPU receives up
to 55 GB/s.
"""
BUFFERS = 2 * READERS
PIECE_BYTES = 8 << 20
"""Maximum bytes of one read. BUFFERS times this bounds the pinned memory of a load."""
WINDOW_BYTES = 512 << 20
"""Bytes of read requests that are queued before they are sorted by file offset and read."""
SMALL_BYTES = 4 << 20


class Mark(Protocol):
    """A point in a device's stream of work (an event)."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Stream(Protocol):
    """The stream on which weights are copied to a device, in order with its other work."""

    def buffer(self, size: int) -> Tensor:
        """Host memory that the device can access directly (pinned)."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Start a copy to `target` on the device from `source`, which is memory that `buffer`
        returned.
        """

    def mark(self) -> Mark:
        """Mark the end of all work launched so far."""


class Reads(Protocol):
    """Reads bytes of weight files onto a device."""

    @property
    def device(self) -> torch.device: ...

    def fill(self, target: Tensor, stored: Stored, start: int = 0) -> None:
        """Fill the contiguous `target` with a tensor's bytes from offset `start`. Complete after
        `settle`.
        """

    def stage(self, stored: Stored, start: int, size: int, then: Callable[[Tensor], None]) -> None:
        """Read `size` bytes from offset `start` of a tensor onto the device, and call `then` with
        them before `settle` returns.
        """

    def send(self, small: Tensor) -> Tensor:
        """Copy a host tensor to the device. Work launched afterwards can read the copy."""

    def settle(self) -> None:
        """Finish all requests; device work launched later can read the data. PenstockError names
        the file, the tensor and the offset of a failed read.
        """


class PlainReads:
    """Synchronous reads into host memory."""

    device = torch.device("cpu")

    def fill(self, target: Tensor, stored: Stored, start: int = 0) -> None:
        _bytes(target).copy_(stored.read(start, start + target.nbytes))

    def stage(self, stored: Stored, start: int, size: int, then: Callable[[Tensor], None]) -> None:
        then(stored.read(start, start + size))

    def send(self, small: Tensor) -> Tensor:
        return small

    def settle(self) -> None:
        """No-op: reads are synchronous."""


class Way(Protocol):
    """The transport of bytes from the readers to the device: through pinned buffers (`Ring`) or
    directly.
    """

    merges: bool
    """True if a piece may contain several tensors."""
    device: torch.device
    piece_bytes: int
    """Maximum bytes per piece."""

    def memory(self, piece: Piece, *, wait: bool) -> Tensor | None:
        """Memory to read the piece into; None if `wait` is false and none is free."""

    def arrived(self, piece: Piece, memory: Tensor) -> None:
        """Called when the piece has been read."""

    def send(self, small: Tensor) -> Tensor:
        """Copy a small host tensor to the device. Work launched afterwards can read the copy."""


class InPlace:
    """Reads directly into the destination, which is possible on torch's CPU device: its memory is
    host memory.
    """

    merges = False

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self.device = torch.device("cpu")
        self.piece_bytes = piece_bytes

    def memory(self, piece: Piece, *, wait: bool) -> Tensor:
        (part,) = piece.parts
        return _target(part, self.device)

    def arrived(self, piece: Piece, memory: Tensor) -> None:
        """No-op: the readers have already written to the destination."""

    def send(self, small: Tensor) -> Tensor:
        return small


class Ring:
    """A ring of pinned host buffers, for a GPU. A buffer is reused once the copies from it are
    done.
    """

    merges = True

    def __init__(
        self,
        stream: Stream,
        device: torch.device,
        buffers: int = BUFFERS,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.device, self.piece_bytes = device, piece_bytes
        self._stream, self._left = stream, buffers
        self._copied: deque[tuple[Tensor, Mark]] = deque()
        """Buffers with copies in flight, oldest first."""
        self._small = torch.empty(0, dtype=torch.uint8)
        """Unused rest of the pinned buffer through which small tensors are sent."""

    def memory(self, piece: Piece, *, wait: bool) -> Tensor | None:
        if self._copied and self._copied[0][1].query():
            return self._copied.popleft()[0]
        if self._left:
            self._left -= 1
            return self._stream.buffer(self.piece_bytes)
        if not wait:
            return None
        # When `wait` is true, the readers hold no piece, so all buffers are in `_copied`.
        buffer, mark = self._copied.popleft()
        mark.synchronize()
        return buffer

    def arrived(self, piece: Piece, memory: Tensor) -> None:
        for part in piece.parts:
            source = memory[part.where : part.where + part.size]
            self._stream.copy(_target(part, self.device), source)
        self._copied.append((memory, self._stream.mark()))

    def send(self, small: Tensor) -> Tensor:
        made = torch.empty(small.shape, dtype=small.dtype, device=self.device)
        size = small.nbytes
        if size == 0:
            return made
        room = -(-size // 16) * 16
        if len(self._small) < room:
            # torch's allocator keeps pinned memory alive until the copies from it are done.
            self._small = self._stream.buffer(max(room, SMALL_BYTES))
        buffer, self._small = self._small[:size], self._small[room:]
        buffer.copy_(_bytes(small.contiguous()))
        self._stream.copy(_bytes(made), buffer)
        return made


class Uploads:
    """Reads of weights in flight to a device. Used by one thread, as a context manager; its exit
    stops the readers.
    """

    def __init__(
        self,
        way: Way,
        readers: int = READERS,
        window_bytes: int = WINDOW_BYTES,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_bytes` is called with the number of bytes of each completed read."""
        self._way, self._window = way, window_bytes
        self._on_bytes, self._most = on_bytes, 2 * readers
        self._readers = Readers(readers)
        self._noted: list[ReadRequest] = []
        self._size = 0
        """Total bytes of the queued requests."""
        self._pieces: deque[Piece] = deque()
        self._ends: dict[ReadRequest, Callable[[Tensor], None]] = {}

    @property
    def device(self) -> torch.device:
        return self._way.device

    def __enter__(self) -> Uploads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._readers.close()

    def fill(self, target: Tensor, stored: Stored, start: int = 0) -> None:
        self._note(ReadRequest(stored, start, target.nbytes, _bytes(target), target.nbytes))

    def stage(self, stored: Stored, start: int, size: int, then: Callable[[Tensor], None]) -> None:
        wanted = ReadRequest(stored, start, size, None, size)
        self._ends[wanted] = then
        self._note(wanted)

    def send(self, small: Tensor) -> Tensor:
        return self._way.send(small)

    def settle(self) -> None:
        self._order()
        while self._pieces or self._readers.flying:
            self._advance(wait=True)

    def _note(self, wanted: ReadRequest) -> None:
        if wanted.size == 0:
            _finish(wanted, self._ends, self._way.device)
            return
        self._noted.append(wanted)
        self._size += wanted.size
        if self._size >= self._window:
            # Finish reading the previous window first. One window is read while the next one is
            # queued.
            while self._pieces:
                self._advance(wait=True)
            self._order()
        while self._advance(wait=False):
            pass

    def _order(self) -> None:
        by_place = sorted(self._noted, key=lambda each: (str(each.stored.file.path), each.offset))
        self._pieces.extend(_pieces(by_place, self._way.piece_bytes, merges=self._way.merges))
        self._noted, self._size = [], 0

    def _advance(self, *, wait: bool) -> bool:
        """Give waiting pieces to the readers, and process one completed piece. Returns False if
        there was none.
        """
        self._give()
        if not self._readers.flying:
            return False
        found = self._readers.take(wait=wait)
        if found is None:
            return False
        piece, memory = found
        self._way.arrived(piece, memory)
        for part in piece.parts:
            part.wanted.left -= part.size
            if part.wanted.left == 0:
                _finish(part.wanted, self._ends, self._way.device)
        self._give()
        self._on_bytes(piece.size)
        return True

    def _give(self) -> None:
        while self._pieces and self._readers.flying < self._most:
            memory = self._way.memory(self._pieces[0], wait=not self._readers.flying)
            if memory is None:
                return
            self._readers.read(self._pieces.popleft(), memory)


def _finish(
    wanted: ReadRequest, ends: dict[ReadRequest, Callable[[Tensor], None]], device: torch.device
) -> None:
    then = ends.pop(wanted, None)
    if then is not None:
        staged = wanted.target
        then(torch.empty(0, dtype=torch.uint8, device=device) if staged is None else staged)
    wanted.target = None


def _target(part: Part, device: torch.device) -> Tensor:
    wanted = part.wanted
    if wanted.target is None:
        wanted.target = torch.empty(wanted.size, dtype=torch.uint8, device=device)
    return wanted.target[part.at : part.at + part.size]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _pieces(wanted: Sequence[ReadRequest], most: int, *, merges: bool) -> Iterator[Piece]:
    """Cut requests, sorted by file and offset, into pieces of at most `most` bytes. With `merges`,
    adjacent requests share pieces.
    """
    group: list[ReadRequest] = []
    end = 0
    for each in wanted:
        near = group and each.stored.file is group[0].stored.file and each.offset <= end
        if group and not (merges and near):
            yield from _cut(group, end, most)
            group = []
        end = max(end, each.offset + each.size) if group else each.offset + each.size
        group.append(each)
    if group:
        yield from _cut(group, end, most)


def _cut(group: Sequence[ReadRequest], end: int, most: int) -> Iterator[Piece]:
    """Split the contiguous range of the requests in `group`, up to offset `end`, into pieces of at
    most `most` bytes.
    """
    first = 0
    for start in range(group[0].offset, end, most):
        stop = min(start + most, end)
        parts = []
        while group[first].offset + group[first].size <= start and first + 1 < len(group):
            first += 1
        for at in range(first, len(group)):
            each = group[at]
            if each.offset >= stop:
                break
            low, high = max(each.offset, start), min(each.offset + each.size, stop)
            if low < high:
                parts.append(Part(each, low - each.offset, low - start, high - low))
        yield Piece(start, stop - start, parts)


class DeviceStream:
    """Copies on the current stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def buffer(self, size: int) -> Tensor:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise PenstockError(
                f"no pinned memory of {size >> 20} MiB to load weights through: {error}"
            ) from error

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        module = runtime(self._device)
        event = module.Event()
        event.record(module.current_stream(self._device))
        return event  # type: ignore[no-any-return]
