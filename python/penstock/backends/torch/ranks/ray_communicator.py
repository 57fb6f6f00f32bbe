"""Sends tensors between two pipeline stages in Ray's compiled graphs: the communicator, and the
device that Ray uses with it.

Ray calls this module through `penstock.executor.ray.edges`; this module does not import Ray. Ray's
own communicator needs cupy, which is built for a different CUDA version than torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.device_lost import is_loss, is_of_library
from penstock.backends.torch.ranks.group import LEAST_MESSAGE, StarStore
from penstock.backends.torch.runtime import accelerated, kind_of, process_group, runtime
from penstock.core import PenstockError

RANKS = 2
"""Number of ranks of a pair. Rank 0 sends, and creates the library's unique id; rank 1 receives."""

log = logging.getLogger(__name__)


class Accelerator:
    """The device of this process's rank, used by Ray as its `AcceleratorContext`. `lose` ends the
    rank because of an error.
    """

    module_name = "penstock"
    communicator_cls = None
    accelerator_count = 1

    def __init__(self, device: str, overlap: bool, lose: Callable[[Exception], None]) -> None:
        self.device = torch.device(device)
        self.overlap = overlap
        self.lose = lose
        self._module = runtime(self.device)

    def open_pair(self, wiring: dict[str, Any], rank: int) -> Pair:
        """Open this rank's end of a pair that sends rows from rank 0 to rank 1. Does not wait for
        the other rank.
        """
        return Pair(open_library(wiring, rank, self.device), rank, self)

    def get_accelerator_devices(self) -> list[Any]:
        return [self.device]

    def get_device_context(self, _device: Any) -> AbstractContextManager[Any]:
        return self._module.device(self.device) if accelerated(self.device) else nullcontext()

    def current_stream(self) -> Any:
        return self._module.current_stream()

    def new_stream(self) -> AbstractContextManager[Any]:
        """A context manager in which launches go to a new stream."""
        made = self._module.Stream(*((self.device,) if accelerated(self.device) else ()))
        found: AbstractContextManager[Any] = self._module.stream(made)
        return found

    def create_event(self) -> Any:
        return self._module.Event()

    def generate_communicator_id(self) -> str:
        """Empty: only Ray's own communicators need an id."""
        return ""


def open_library(wiring: dict[str, Any], rank: int, device: torch.device) -> Any:
    """Process group of two ranks by the device's library (NCCL); it connects at the first
    transfer.
    """
    from penstock._native import Star

    try:
        group = process_group(kind_of(device))
    except PenstockError as error:
        raise PenstockError(f"{error}, or use --ray-channel ring") from error
    key, patience = bytes.fromhex(wiring["key"]), float(wiring["patience_s"])
    star = Star(wiring["address"], key, rank, RANKS, LEAST_MESSAGE, patience)
    return group(StarStore(star, rank), rank, RANKS, timedelta(seconds=patience))


class Pair:
    """One end of a one-way connection for tensors, over a torch process group. Raises
    ConnectionError if the other rank is lost.

    If the accelerator overlaps transfers with steps, Ray calls `send` and `receive` on separate
    streams and makes other streams wait for them. Otherwise the host waits until the tensor is sent
    or received.
    """

    def __init__(self, group: Any, rank: int, accelerator: Accelerator) -> None:
        self._group = group
        self._other = 1 - rank
        self._accelerator = accelerator
        self._sending: tuple[Tensor, Any] | None = None
        """The tensor in flight, and the event that marks the end of its send. The reference keeps
        the memory alive until the send is done.
        """
        self.send_stream = accelerator.new_stream() if accelerator.overlap else nullcontext()
        self.receive_stream = accelerator.new_stream() if accelerator.overlap else nullcontext()

    def send(self, x: Tensor) -> None:
        # Wait for the previous send, so that the host is at most one tensor ahead of the device.
        self._settle()
        self._move(self._group.send, x)
        self._sending = x, self._mark()
        if not self._accelerator.overlap:
            self._settle()

    def receive(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=self._accelerator.device)
        self._move(self._group.recv, x)
        if not self._accelerator.overlap:
            self._mark().synchronize()
        return x

    def close(self) -> None:
        """Close the connection, without waiting for the other rank, which may be lost."""
        try:
            self._group.abort()
        except RuntimeError as error:
            log.warning("the way to the other stage: %s", error)

    def _move(self, begin: Callable[..., Any], x: Tensor) -> None:
        if not x.numel():
            return
        try:
            begin([x], self._other, 0).wait()
        except RuntimeError as error:
            if is_loss(error) and not is_of_library(error):
                raise
            raise ConnectionError(f"the rank of the other stage was lost: {error}") from error

    def _mark(self) -> Any:
        event = self._accelerator.create_event()
        event.record()
        return event

    def _settle(self) -> None:
        if self._sending is not None:
            _, gone = self._sending
            gone.synchronize()
            self._sending = None
