"""Asynchronous copies between device memory and pinned host memory, concurrent with the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.backends.torch.device_lost import losses, remedy
from penstock.backends.torch.kernels import crc64
from penstock.backends.torch.runtime import kind_of, runtime
from penstock.core import DeviceLostError, PenstockError

PAGE = 4096
"""Alignment in bytes that direct I/O requires of buffers."""
Pair = tuple[Tensor, Tensor]
"""Target and source of a copy, equal in shape and type."""
HANG_S = 60.0
"""Seconds after which a copy counts as hung. Normally a copy takes milliseconds."""
LONGEST_SLEEP_S = 0.001


class Copied(Protocol):
    """A group of copies in flight."""

    def result(self) -> float:
        """Wait for the copies to end. Returns the seconds they took."""


class Copies(Protocol):
    """Copies between device memory and pinned host memory. Each direction has its own stream;
    copies of one direction run in call order.
    """

    gds: bool
    """Whether GPUDirect Storage can read into the device's memory."""

    def pin(self, size: int) -> Tensor:
        """Allocate `size` bytes of pinned host memory. Raises PenstockError if that fails."""

    def unpin(self, memory: Tensor) -> None:
        """Unpin the memory that `pin` returned. No copy from or to it may be in flight."""

    def to_host(self, pairs: Sequence[Pair]) -> Copied: ...

    def to_device(self, pairs: Sequence[Pair]) -> Copied: ...

    def crc64(self, memories: Sequence[Tensor]) -> int:
        """CRC-64/NVME over the bytes of tensors on the device, as if they were concatenated."""


class DeviceCopies:
    """The copy engines of a device with streams.

    These streams need no events to synchronise with steps: the host copies blocks out only after
    the steps that wrote them are done, and launches steps that read loaded blocks only after the
    copies are done.
    """

    def __init__(self, device: torch.device, gpu: str = "the GPU") -> None:
        """`gpu` is the GPU's name for error messages."""
        self._device, self._gpu = device, gpu
        kind, self._runtime = kind_of(device), runtime(device)
        self.gds, self._registers = kind.gds, kind.registers
        self._outward = self._runtime.Stream(device)
        self._inward = self._runtime.Stream(device)
        self._checksums = self._runtime.Stream(device)

    def pin(self, size: int) -> Tensor:
        if not self._registers:
            return self._allocate_pinned(size)
        # torch's own pinned allocator would round the size up to a power of two.
        memory = _aligned(torch.empty(size + PAGE, dtype=torch.uint8), size)
        cudart = self._runtime.cudart()
        with self._runtime.device(self._device):
            status = cudart.cudaHostRegister(memory.data_ptr(), size, 0) if size else 0
        if int(status):
            raise _no_room(size, cudart.cudaGetErrorString(status))
        return memory

    def _allocate_pinned(self, size: int) -> Tensor:
        try:
            return _aligned(torch.empty(size + PAGE, dtype=torch.uint8, pin_memory=True), size)
        except RuntimeError as error:
            raise _no_room(size, error) from error

    def unpin(self, memory: Tensor) -> None:
        # Memory from torch's allocator is unpinned when its tensor is freed.
        if not self._registers or not len(memory):
            return
        with self._runtime.device(self._device):
            self._runtime.cudart().cudaHostUnregister(memory.data_ptr())

    def to_host(self, pairs: Sequence[Pair]) -> Copied:
        return _DeviceCopied(self._outward, pairs, self._gpu, self._runtime)

    def to_device(self, pairs: Sequence[Pair]) -> Copied:
        return _DeviceCopied(self._inward, pairs, self._gpu, self._runtime)

    def crc64(self, memories: Sequence[Tensor]) -> int:
        with losses(self._gpu), on_stream(self._checksums):
            return crc64(memories)


def _aligned(memory: Tensor, size: int) -> Tensor:
    start = -memory.data_ptr() % PAGE
    return memory[start : start + size]


def _no_room(size: int, reason: object) -> PenstockError:
    return PenstockError(
        f"cannot pin {size} bytes of the host for KV tiers ({reason}); make --kv-tier ram: smaller"
    )


class _DeviceCopied:
    def __init__(self, stream: Any, pairs: Sequence[Pair], gpu: str, module: Any) -> None:
        self._gpu = gpu
        self._began, self._ended = (module.Event(enable_timing=True) for _ in range(2))
        with losses(gpu), on_stream(stream):
            self._began.record(stream)
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            self._ended.record(stream)

    def result(self) -> float:
        # Poll and sleep, so that other threads run. CUDA's own wait has no timeout.
        with losses(self._gpu):
            if not wait_for(self._ended.query, HANG_S):
                what = f"a copy of KV blocks on {self._gpu} has not ended after {HANG_S:.0f} s"
                raise DeviceLostError(f"{what}. {remedy()}")
            return float(self._began.elapsed_time(self._ended)) / 1e3


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Launch the block's work on `stream`. Afterwards the stream's GPU remains the thread's current
    device. By default, torch restores GPU 0 on a new thread, so each rank would create a CUDA
    context of 0.5 GB on that GPU.
    """
    module = runtime(stream.device)
    module.set_device(stream.device)
    with module.stream(stream):
        yield


def wait_for(ended: Callable[[], bool], seconds: float) -> bool:
    """Poll `ended` for at most `seconds`. Returns False on time-out."""
    end, sleep = time.monotonic() + seconds, LONGEST_SLEEP_S / 16
    while not ended():
        if time.monotonic() > end:
            return False
        time.sleep(sleep)
        sleep = min(2 * sleep, LONGEST_SLEEP_S)
    return True
