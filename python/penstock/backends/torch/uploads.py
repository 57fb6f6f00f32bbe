"""Uploads of weights by way of pinned memory: the host reads the next piece, from the page cache or
a disk, while the device takes those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

BUFFERS = 4
BUFFER_BYTES = 64 << 20
"""With BUFFERS the bound of host memory that a load takes beside the mapped file."""


class Stream(Protocol):
    """Copies to a device, in the order of its other work."""

    def buffer(self, size: int) -> Tensor:
        """Bytes of host memory that the device can read by itself."""

    def start(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        """Begin to copy `source`, of such memory, into `target`, whose type may be another. The
        result waits for its end.
        """


class Uploads:
    """A ring of buffers. One is written again only when the copy from it has ended."""

    def __init__(
        self, stream: Stream, buffers: int = BUFFERS, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._stream = stream
        self._most = buffers
        self._bytes = buffer_bytes
        self._ring: deque[tuple[Tensor, Callable[[], None]]] = deque()
        """The buffer whose copy began first is the first."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy host memory of any strides into the device's, in pieces of whole rows. It has
        arrived for all work that the device begins later.
        """
        if source.numel() == 0:
            return
        row = source[0].numel() * source.element_size()
        if row > self._bytes:
            for inner, outer in zip(source, target, strict=True):
                self.copy(inner, outer)
            return
        rows = self._bytes // row
        for at in range(0, len(source), rows):
            piece = source[at : at + rows]
            buffer = self._free()
            staged = buffer[: piece.numel() * piece.element_size()].view(piece.dtype)
            staged = staged.view(piece.shape).copy_(piece)
            wait = self._stream.start(target[at : at + rows], staged)
            self._ring.append((buffer, wait))

    def _free(self) -> Tensor:
        if len(self._ring) < self._most:
            return self._stream.buffer(self._bytes)
        buffer, wait = self._ring.popleft()
        wait()
        return buffer


class CudaStream:
    """Copies on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def start(self, target: Tensor, source: Tensor) -> Callable[[], None]:
        if target.dtype == source.dtype:
            target.copy_(source, non_blocking=True)
        else:
            # torch would convert on the host, into memory that is not pinned.
            target.copy_(source.to(self._device, non_blocking=True))
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        wait: Callable[[], None] = event.synchronize
        return wait
