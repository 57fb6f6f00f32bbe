"""The compute device of a rank: it executes work in order, and has memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.backends.torch.async_copy import Copies, DeviceCopies, on_stream, wait_for
from penstock.backends.torch.device_lost import label, losses
from penstock.backends.torch.load.uploads import DeviceStream, InPlace, Ring, Way
from penstock.backends.torch.runtime import resolved, runtime
from penstock.backends.torch.step.captures import Capture, capture_graph
from penstock.config.devices import DeviceKind
from penstock.config.machine import available_memory
from penstock.core import PenstockError

CLOSE_S = 10.0
"""Seconds that `close` waits for steps in flight."""

log = logging.getLogger(__name__)


class Done(Protocol):
    """Work that a device has started."""

    seconds: float
    """Run time of the work, set once it is done."""

    def result(self, timeout: float | None = None) -> None:
        """Wait for the work. Raises TimeoutError after `timeout` seconds, or the error of
        the work.
        """


class Device(Protocol):
    """A device that runs work (functions that launch operations) in the order of `start`. Only work
    may access the device's tensors.
    """

    torch: torch.device
    name: str

    def start(self, work: Callable[[], None]) -> Done:
        """Start work. Copies made by `to_host` are complete once the work is done."""

    def to_host(self, tensor: Tensor) -> Tensor:
        """Start to copy a tensor to the host. Called from within work."""

    def handed(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Hand a tensor over from the caller's stream to the device's. Work calls the returned
        function to get the tensor.
        """

    def mark(self) -> Callable[[], bool]:
        """Return a function whose result is True once all work launched up to now is done. Called
        from within work.
        """

    @property
    def copies(self) -> Copies | None:
        """Asynchronous copies to and from the host; None if the device uses host memory."""

    def free_memory(self) -> int:
        """Free bytes of the device, without the bytes in torch's memory cache."""

    def kept_memory(self) -> int:
        """Bytes reserved by torch's allocator, used or cached."""

    def release(self) -> None:
        """Free torch's unused cached memory."""

    def synchronize(self) -> None:
        """Wait for operations launched outside of work."""

    def way(self) -> Way:
        """The transport for weights to the device."""

    @property
    def capture(self) -> Capture | None:
        """Captures graphs; None if the device does not support them."""

    def close(self) -> None: ...


class Cpu:
    """torch's CPU device: work runs on one background thread."""

    def __init__(self, threads: int) -> None:
        self.torch = torch.device("cpu")
        self.name = "torch-cpu"
        self._threads = threads
        self._worker = ThreadPoolExecutor(1, "torch", initializer=self._begin)

    def _begin(self) -> None:
        torch.set_num_threads(self._threads)

    def start(self, work: Callable[[], None]) -> Done:
        return _Submitted(work, self._worker)

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor

    def handed(self, tensor: Tensor) -> Callable[[], Tensor]:
        return lambda: tensor

    def mark(self) -> Callable[[], bool]:
        return lambda: True

    @property
    def copies(self) -> None:
        return None

    def free_memory(self) -> int:
        return available_memory()

    def kept_memory(self) -> int:
        return 0

    def release(self) -> None:
        """No-op: nothing is cached."""

    def synchronize(self) -> None:
        """No-op: operations outside of work are synchronous."""

    def way(self) -> Way:
        return InPlace()

    @property
    def capture(self) -> None:
        return None

    def close(self) -> None:
        self._worker.shutdown(cancel_futures=True)


class _Submitted:
    def __init__(self, work: Callable[[], None], worker: ThreadPoolExecutor) -> None:
        self._work = work
        self.seconds = 0.0
        self._future: Future[None] = worker.submit(self._timed)

    def _timed(self) -> None:
        began = time.perf_counter()
        self._work()
        self.seconds = time.perf_counter() - began

    def result(self, timeout: float | None = None) -> None:
        self._future.result(timeout)


class Accelerated:
    """A device of the table, such as a GPU: the caller's thread launches work, which runs on a
    stream.
    """

    def __init__(self, kind: DeviceKind, index: int) -> None:
        self._kind, self.torch = kind, torch.device(kind.name, index)
        if kind.check is not None:
            resolved(kind.check)(self.torch)
        self._runtime = runtime(self.torch)
        count = self._runtime.device_count()
        if index >= count:
            raise PenstockError(
                f"rank {index} of this host has no {kind.unit}: there are {count}; "
                f"lower --tensor-parallel-size, or see {kind.visible}"
            )
        self._runtime.set_device(self.torch)
        self.name = self._runtime.get_device_name(index)
        self._label = label(self.torch)
        self._stream = self._runtime.Stream(self.torch)
        self._lock = threading.Lock()
        """Held while work launches, so that no launch is recorded into the graph that other work
        captures.
        """

    def start(self, work: Callable[[], None]) -> Done:
        began, ended = (self._runtime.Event(enable_timing=True) for _ in range(2))
        with losses(self._label), self._lock, on_stream(self._stream):
            began.record(self._stream)
            work()
            ended.record(self._stream)
        return _Recorded(began, ended, self._label)

    def to_host(self, tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def handed(self, tensor: Tensor) -> Callable[[], Tensor]:
        ready = self._runtime.current_stream(self.torch).record_event()

        def take() -> Tensor:
            self._stream.wait_event(ready)
            # The memory belongs to the caller's stream, which could otherwise reuse it too early.
            tensor.record_stream(self._stream)
            return tensor

        return take

    def mark(self) -> Callable[[], bool]:
        event = self._runtime.Event()
        event.record(self._stream)
        return lambda: bool(event.query())

    @cached_property
    def copies(self) -> Copies:
        return DeviceCopies(self.torch, self._label)

    def free_memory(self) -> int:
        return int(self._runtime.mem_get_info(self.torch)[0])

    def kept_memory(self) -> int:
        return int(self._runtime.memory_reserved(self.torch))

    def release(self) -> None:
        self._runtime.synchronize(self.torch)
        self._runtime.empty_cache()

    def synchronize(self) -> None:
        self._runtime.synchronize(self.torch)

    def way(self) -> Way:
        return Ring(DeviceStream(self.torch), self.torch)

    @cached_property
    def capture(self) -> Capture | None:
        """Capture graphs. All graphs share one memory pool, because they are replayed one after
        another.
        """
        if self._kind.graph is None:
            return None
        pool = self._runtime.graph_pool_handle()
        return partial(capture_graph, device=self.torch, pool=pool)

    def close(self) -> None:
        """Wait for launched work, at most CLOSE_S seconds: a hung or lost GPU must not block the
        shutdown.
        """
        try:
            if not wait_for(self._stream.query, CLOSE_S):
                log.error("%s has not ended its work after %.0f s", self._label, CLOSE_S)
        except RuntimeError as error:
            log.error("%s: %s", self._label, error)


class _Recorded:
    def __init__(self, began: Any, ended: Any, gpu: str) -> None:
        self._began = began
        self._ended = ended
        self._gpu = gpu
        self.seconds = 0.0

    def result(self, timeout: float | None = None) -> None:
        with losses(self._gpu):
            if timeout is None:
                self._ended.synchronize()
            elif not wait_for(self._ended.query, timeout):
                raise TimeoutError
            self.seconds = self._began.elapsed_time(self._ended) / 1e3
