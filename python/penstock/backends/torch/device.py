"""Where a rank computes: streams of work in order, and memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from penstock.backends.torch.async_copy import Copies, CudaCopies, on_stream, wait_for
from penstock.backends.torch.captures import Capture, capture_cuda
from penstock.backends.torch.device_lost import label, losses
from penstock.backends.torch.uploads import CudaStream, InPlace, Ring, Way
from penstock.config.machine import available_memory
from penstock.core import PenstockError

CLOSE_S = 10.0
"""What steps in flight get to end at a stop."""
OLD_DRIVER = "580"
"""The first driver of CUDA 13, which PyPI's torch is built with."""
LEAST_CAPABILITY = (8, 0)
"""Compute capability that the kernels need: the first with products of bfloat16."""

log = logging.getLogger(__name__)


class Done(Protocol):
    """Work that was started."""

    seconds: float
    """Time of the work alone, once it is done."""

    def result(self, timeout: float | None = None) -> None:
        """Wait for it. TimeoutError after `timeout` seconds, or the work's error."""


class Device(Protocol):
    """Work runs in the order of `start`, and tensors of the device are touched by it alone."""

    torch: torch.device
    name: str

    def start(self, work: Callable[[], None]) -> Done:
        """Start work; its results are on the host once it is done."""

    def to_host(self, tensor: Tensor) -> Tensor:
        """A copy for the host, called from work."""

    def handed(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Gives a tensor of the caller's stream to the work that calls it."""

    def mark(self) -> Callable[[], bool]:
        """Whether what work has launched so far is done, called from work."""

    @property
    def copies(self) -> Copies | None:
        """Copies to and from the host beside the steps; None: the memory is the host's own."""

    def free_memory(self) -> int:
        """Bytes that could be allocated now, beside what is kept for tensors."""

    def kept_memory(self) -> int:
        """Bytes that are kept for tensors, used or not."""

    def release(self) -> None:
        """Give back what is kept for tensors and not used."""

    def synchronize(self) -> None:
        """Wait for what was done outside of work."""

    def way(self) -> Way:
        """How weights reach it."""

    @property
    def capture(self) -> Capture | None:
        """How graphs are recorded; None: they are not."""

    def close(self) -> None: ...


class Cpu:
    """torch's CPU device: a thread of its own computes."""

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
        """Nothing is kept."""

    def synchronize(self) -> None:
        """Nothing runs outside of work and of the caller."""

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


class Cuda:
    """A GPU: work is launched by the caller and runs on a stream."""

    def __init__(self, index: int) -> None:
        check_driver()
        if index >= torch.cuda.device_count():
            raise PenstockError(
                f"rank {index} of this host has no GPU: there are {torch.cuda.device_count()}; "
                "lower --tensor-parallel-size, or see CUDA_VISIBLE_DEVICES"
            )
        self.torch = torch.device("cuda", index)
        check_capability(self.torch)
        torch.cuda.set_device(self.torch)
        self.name = torch.cuda.get_device_name(index)
        self._label = label(self.torch)
        self._stream = torch.cuda.Stream(self.torch)
        self._lock = threading.Lock()
        """Nothing else is launched on the stream while a graph is captured on it."""

    def start(self, work: Callable[[], None]) -> Done:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with losses(self._label), self._lock, on_stream(self._stream):
            began.record(self._stream)
            work()
            ended.record(self._stream)
        return _Recorded(began, ended, self._label)

    def to_host(self, tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def handed(self, tensor: Tensor) -> Callable[[], Tensor]:
        ready = torch.cuda.current_stream(self.torch).record_event()

        def take() -> Tensor:
            self._stream.wait_event(ready)
            # Its memory belongs to the caller's stream, which could reuse it too early.
            tensor.record_stream(self._stream)
            return tensor

        return take

    def mark(self) -> Callable[[], bool]:
        event = torch.cuda.Event()
        event.record(self._stream)
        return lambda: bool(event.query())

    @cached_property
    def copies(self) -> Copies:
        return CudaCopies(self.torch, self._label)

    def free_memory(self) -> int:
        return int(torch.cuda.mem_get_info(self.torch)[0])

    def kept_memory(self) -> int:
        return int(torch.cuda.memory_reserved(self.torch))

    def release(self) -> None:
        torch.cuda.synchronize(self.torch)
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    def way(self) -> Way:
        return Ring(CudaStream(self.torch), self.torch)

    @cached_property
    def capture(self) -> Capture:
        """All graphs share memory: they are replayed one after another."""
        return partial(capture_cuda, pool=torch.cuda.graph_pool_handle())

    def close(self) -> None:
        """Wait for what was launched. A GPU that hangs or is lost holds up no stop."""
        try:
            if not wait_for(self._stream.query, CLOSE_S):
                log.error("%s has not ended its work after %.0f s", self._label, CLOSE_S)
        except RuntimeError as error:
            log.error("%s: %s", self._label, error)


class _Recorded:
    def __init__(self, began: torch.cuda.Event, ended: torch.cuda.Event, gpu: str) -> None:
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


def check_driver() -> None:
    """PenstockError says why there is no GPU: no driver, an old one, or none is visible."""
    if torch.cuda.is_available():
        return
    built = torch.version.cuda
    if built is None:
        raise PenstockError("--device cuda: this torch is built without CUDA; install another one")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
    else:
        reason = "no GPU is visible; see CUDA_VISIBLE_DEVICES"
    raise PenstockError(
        f"--device cuda: {reason} (torch {torch.__version__} is built for CUDA {built}; CUDA 13 "
        f"needs a driver from {OLD_DRIVER} on, shown by nvidia-smi)"
    )


def check_capability(device: torch.device) -> None:
    """PenstockError for a GPU that the kernels do not run on."""
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        own, least = (".".join(map(str, each)) for each in (found, LEAST_CAPABILITY))
        raise PenstockError(
            f"--device cuda: {label(device)} has compute capability {own}; the kernels need "
            f"{least} (Ampere, such as A100 and RTX 30) or later. Choose another GPU by "
            "CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
