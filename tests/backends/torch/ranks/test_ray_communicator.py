"""The way of tensors between two stages: threads over gloo, and what a GPU's streams wait for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from penstock.backends.torch.ranks.ray_communicator import Accelerator, Pair, open_library
from penstock.backends.torch.step import device
from tests.backends.torch.ranks.test_group import KEY, free_address
from tests.fakes.ray_gpu import open_gloo
from tests.limits import HANG

T = TypeVar("T")


def on_both(work: Callable[[int, str], T]) -> list[T]:
    address = free_address()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, rank, address) for rank in range(2)]
        return [each.result(HANG) for each in futures]


def no_loss(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("overlap", [False, True])
def test_tensors_arrive_in_order_with_their_bits(overlap: bool) -> None:
    """Any number of rows, none too, in both types of numbers that stages compute with."""
    numbers = torch.Generator().manual_seed(1)
    sent = [
        torch.randn(rows, 64, generator=numbers).to(dtype)
        for rows in (3, 0, 1, 129)
        for dtype in (torch.float32, torch.bfloat16)
    ]

    def work(rank: int, address: str) -> list[Tensor]:
        accelerator = Accelerator("cpu", overlap, no_loss)
        pair = Pair(open_gloo(address, rank), rank, accelerator)
        if rank == 0:
            with pair.send_stream:
                for x in sent:
                    pair.send(x)
            return []
        with pair.receive_stream:
            return [pair.receive(x.shape, x.dtype) for x in sent]

    _, received = on_both(work)
    for got, want in zip(received, sent, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_a_rank_that_is_gone_is_named_as_the_cause() -> None:
    def work(rank: int, address: str) -> str:
        pair = Pair(open_gloo(address, rank), rank, Accelerator("cpu", False, no_loss))
        if rank == 0:
            pair.send(torch.ones(2, 3))
            pair.close()
            return "gone"
        pair.receive(torch.Size((2, 3)), torch.float32)
        with pytest.raises(ConnectionError, match="the rank of the other stage was lost") as caught:
            pair.receive(torch.Size((2, 3)), torch.float32)
        return str(caught.value)

    assert on_both(work)[0] == "gone"


def test_the_unique_id_of_nccl_comes_from_the_sending_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeNccl:
        def __init__(self, store: dist.Store, rank: int, ranks: int, wait: timedelta) -> None:
            assert (ranks, wait) == (2, timedelta(seconds=HANG))
            inner = dist.PrefixStore("nccl", store)
            if rank == 0:
                inner.set("0:1", b"unique")
            self.unique_id = inner.get("0:1")

    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)

    def work(rank: int, address: str) -> bytes:
        wiring = {"address": address, "key": KEY.hex(), "patience_s": HANG}
        found: bytes = open_library(wiring, rank, torch.device("cuda", 0)).unique_id
        return found

    assert on_both(work) == [b"unique"] * 2


class Watched(Accelerator):
    """One whose events note what the host waits for."""

    def __init__(self, overlap: bool) -> None:
        super().__init__("cpu", overlap, no_loss)
        self.log: list[str] = []

    def create_event(self) -> Any:
        return Event(self.log)


class Event:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def record(self) -> None:
        self._log.append("mark")

    def synchronize(self) -> None:
        self._log.append("wait")


class Group:
    """Begins and says so."""

    def __init__(self, log: list[str], error: Exception | None = None) -> None:
        self._log = log
        self._error = error

    def send(self, tensors: list[Tensor], other: int, _tag: int) -> Any:
        return self._begin(f"send {len(tensors[0])} to {other}")

    def recv(self, tensors: list[Tensor], other: int, _tag: int) -> Any:
        return self._begin(f"receive {len(tensors[0])} from {other}")

    def _begin(self, what: str) -> Group:
        if self._error is not None:
            raise self._error
        self._log.append(what)
        return self

    def wait(self) -> None: ...


def test_the_host_waits_for_each_tensor_unless_it_overlaps() -> None:
    accelerator = Watched(overlap=False)
    pair = Pair(Group(accelerator.log), 0, accelerator)
    pair.send(torch.ones(1, 2))
    pair.send(torch.ones(2, 2))
    assert accelerator.log == ["send 1 to 1", "mark", "wait", "send 2 to 1", "mark", "wait"]
    accelerator.log.clear()
    Pair(Group(accelerator.log), 1, accelerator).receive(torch.Size((5, 2)), torch.float32)
    assert accelerator.log == ["receive 5 from 0", "mark", "wait"]
    assert isinstance(pair.send_stream, nullcontext)


def test_with_overlap_the_host_goes_on_and_a_tensor_stays_until_it_has_gone() -> None:
    accelerator = Watched(overlap=True)
    pair = Pair(Group(accelerator.log), 0, accelerator)
    first = torch.ones(1, 2)
    kept = weakref.ref(first)
    pair.send(first)
    del first
    assert accelerator.log == ["send 1 to 1", "mark"]
    assert kept() is not None, "the next step could be given its memory"
    pair.send(torch.ones(2, 2))
    assert accelerator.log[2:] == ["wait", "send 2 to 1", "mark"]
    assert kept() is None
    accelerator.log.clear()
    Pair(Group(accelerator.log), 1, accelerator).receive(torch.Size((5, 2)), torch.float32)
    assert accelerator.log == ["receive 5 from 0"]


def test_a_gpu_that_is_lost_does_not_accuse_the_other_stage() -> None:
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    accelerator = Watched(overlap=False)
    with pytest.raises(torch.AcceleratorError):
        Pair(Group([], error), 0, accelerator).send(torch.ones(1, 2))


def test_steps_wait_for_the_stream_that_received_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, object]] = []

    class Stream:
        def record_event(self) -> str:
            log.append(("recorded", self))
            return "the rows are there"

        def wait_event(self, event: str) -> None:
            log.append(("waits", (self, event)))

    class Rows:
        def record_stream(self, stream: object) -> None:
            log.append(("kept for", stream))

    callers, own, rows = Stream(), Stream(), Rows()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: callers)
    gpu = device.Accelerated.__new__(device.Accelerated)
    gpu.torch = torch.device("cuda:0")
    gpu._runtime, gpu._stream = torch.cuda, own
    take = gpu.handed(rows)  # type: ignore[arg-type]
    assert log == [("recorded", callers)]
    assert take() is rows  # type: ignore[comparison-overlap]
    assert log[1:] == [("waits", (own, "the rows are there")), ("kept for", own)]
