"""A GPU that is torch's CPU device, for Ray's compiled graphs: its tensors go by Ray's way for
those of GPUs, and by gloo where NCCL would be.

`pretend` takes a fault: "late" (a message ends long after its tensor), "without nccl", "break"
(the fourth tensor is not sent), "hang" (the fourth one is not received).
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.backends.torch.ranks.ray_communicator import Accelerator, Pair, open_library
from penstock.executor.ray.edges import announce
from tests.limits import HANG

LATE = 0.4
"""Seconds; Ray reads an edge anew after 0.1, by default."""
FOURTH = 4

MOVED: list[tuple[str, tuple[int, ...], str]] = []
"""What this process sent and received by gloo."""


class PretendedDevice:
    """What Ray asks of a device: whether a tensor is on it, and that it is no CPU."""

    type = "pretended"

    def __eq__(self, other: object) -> bool:
        return other is self or other == torch.device("cpu")

    __hash__ = None  # type: ignore[assignment]


class PretendedGpu(Accelerator):
    def __init__(self, fault: str, overlap: bool, lose: Any) -> None:
        super().__init__("cpu", overlap, lose)
        self._fault = fault

    def get_accelerator_devices(self) -> list[Any]:
        return [PretendedDevice()]

    def open_pair(self, wiring: dict[str, Any], rank: int) -> Pair:
        if self._fault == "without nccl":
            with mock.patch.object(dist, "ProcessGroupNCCL", None, create=True):
                open_library(wiring, rank, torch.device("cuda", 0))
        return Watched(open_gloo(wiring["address"], rank), rank, self, self._fault)


def open_gloo(address: str, rank: int) -> Any:
    host, port = address.rsplit(":", 1)
    wait = timedelta(seconds=HANG)
    store = dist.TCPStore(host, int(port), 2, rank == 0, wait, wait_for_workers=False)
    return dist.ProcessGroupGloo(store, rank, 2, wait)


class Watched(Pair):
    def __init__(self, group: Any, rank: int, accelerator: Accelerator, fault: str) -> None:
        super().__init__(group, rank, accelerator)
        self._fault = fault
        self._count = 0

    def send(self, x: Tensor) -> None:
        self._count += 1
        if self._fault == "break" and self._count == FOURTH:
            raise ConnectionError("the cable was told to break")
        MOVED.append(("sent", tuple(x.shape), str(x.dtype)))
        super().send(x)
        if self._fault == "late":
            time.sleep(LATE)

    def receive(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        self._count += 1
        if self._fault == "hang" and self._count == FOURTH:
            time.sleep(3600)
        MOVED.append(("received", tuple(shape), str(dtype)))
        return super().receive(shape, dtype)


def pretend(fault: str, actor: Any, _device: str, overlap: bool, buffer_bytes: int) -> None:
    """In place of `edges.prepare`."""
    announce(PretendedGpu(fault, overlap, actor.lose), buffer_bytes)


def moved(_actor: Any) -> list[tuple[str, tuple[int, ...], str]]:
    return MOVED
