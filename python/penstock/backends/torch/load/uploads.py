"""Weights from files to a device: threads read, and the caller's thread starts the copies.

What is wanted is noted first, and read in the order of the files: neighbours in a file are one
read, however small they are. A GPU gets them by way of a ring of pinned buffers; to torch's CPU
device they are read in place.
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
from penstock.core import PenstockError

READERS = 8
"""A core copies 5 to 10 GB/s out of the page cache, and a GPU takes 55."""
BUFFERS = 2 * READERS
PIECE_BYTES = 8 << 20
"""With BUFFERS the bound of host memory that a load takes."""
WINDOW_BYTES = 512 << 20
"""What is noted before it is put in the order of the files."""
SMALL_BYTES = 4 << 20


class Mark(Protocol):
    """A place in the work of a device."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Stream(Protocol):
    """Copies to a device, in the order of its other work."""

    def buffer(self, size: int) -> Tensor:
        """Bytes of host memory that the device can read by itself."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Begin to copy `source`, of such memory."""

    def mark(self) -> Mark:
        """The end of all that has begun."""


class Reads(Protocol):
    """Bytes of files for a device."""

    @property
    def device(self) -> torch.device: ...

    def fill(self, target: Tensor, stored: Stored, start: int = 0) -> None:
        """Fill `target`, whose numbers lie one after another, with as many bytes of a tensor. They
        are there after `settle`.
        """

    def stage(self, stored: Stored, start: int, size: int, then: Callable[[Tensor], None]) -> None:
        """Call `then`, before the end of `settle`, with these bytes of a tensor on the device."""

    def send(self, small: Tensor) -> Tensor:
        """Numbers of the host on the device, there for all work that begins later."""

    def settle(self) -> None:
        """All that was wanted has arrived, for work of the device that begins later. PenstockError
        names file, tensor and place where it cannot be read.
        """


class PlainReads:
    """To memory of the host, at once."""

    device = torch.device("cpu")

    def fill(self, target: Tensor, stored: Stored, start: int = 0) -> None:
        _bytes(target).copy_(stored.read(start, start + target.nbytes))

    def stage(self, stored: Stored, start: int, size: int, then: Callable[[Tensor], None]) -> None:
        then(stored.read(start, start + size))

    def send(self, small: Tensor) -> Tensor:
        return small

    def settle(self) -> None:
        """All is there."""


class Way(Protocol):
    """How bytes get from the readers to the device."""

    merges: bool
    """Whether a piece may have several tensors."""
    device: torch.device
    piece_bytes: int
    """The most of a piece."""

    def memory(self, piece: Piece, *, wait: bool) -> Tensor | None:
        """Where the piece is read to; None: nothing is free yet, and `wait` is false."""

    def arrived(self, piece: Piece, memory: Tensor) -> None:
        """The piece has been read."""

    def send(self, small: Tensor) -> Tensor:
        """Numbers of the host as the device has them."""


class InPlace:
    """The device's memory is the host's."""

    merges = False

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self.device = torch.device("cpu")
        self.piece_bytes = piece_bytes

    def memory(self, piece: Piece, *, wait: bool) -> Tensor:
        (part,) = piece.parts
        return _target(part, self.device)

    def arrived(self, piece: Piece, memory: Tensor) -> None:
        """The readers have written it."""

    def send(self, small: Tensor) -> Tensor:
        return small


class Ring:
    """Buffers of pinned memory. One is given out again when the copies from it have ended."""

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
        """Buffers that copies are made from, the first to end first."""
        self._small = torch.empty(0, dtype=torch.uint8)
        """The rest of a buffer for small tensors."""

    def memory(self, piece: Piece, *, wait: bool) -> Tensor | None:
        if self._copied and self._copied[0][1].query():
            return self._copied.popleft()[0]
        if self._left:
            self._left -= 1
            return self._stream.buffer(self.piece_bytes)
        if not wait:
            return None
        # All buffers are here: those with readers came back first.
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
            # torch's allocator keeps what copies are made from.
            self._small = self._stream.buffer(max(room, SMALL_BYTES))
        buffer, self._small = self._small[:size], self._small[room:]
        buffer.copy_(_bytes(small.contiguous()))
        self._stream.copy(_bytes(made), buffer)
        return made


class Uploads:
    """Tensors on their way. Used by one thread, and as a context: its end ends the readers."""

    def __init__(
        self,
        way: Way,
        readers: int = READERS,
        window_bytes: int = WINDOW_BYTES,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_bytes` is called with numbers of bytes that have been read."""
        self._way, self._window = way, window_bytes
        self._on_bytes, self._most = on_bytes, 2 * readers
        self._readers = Readers(readers)
        self._noted: list[ReadRequest] = []
        self._size = 0
        """Bytes of those noted."""
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
            # What was noted before is read while the next is noted, and no more.
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
        """Give pieces to the readers, and take one back; False where none was there."""
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
    """Pieces of at most so many bytes, from tensors in the order of their places."""
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
    """Pieces of bytes one after another."""
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


class CudaStream:
    """Copies on the current stream of a GPU."""

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
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event  # type: ignore[no-any-return]
