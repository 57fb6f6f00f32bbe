"""GPUs that are missing, too old or lost, with a fake in place of CUDA: errors name them."""

from __future__ import annotations

import contextlib
import logging
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from penstock.backends.torch.async_copy import _DeviceCopied
from penstock.backends.torch.device_lost import is_loss
from penstock.backends.torch.ranks import group as group_module
from penstock.backends.torch.ranks.group import LibraryGroup
from penstock.backends.torch.step import device as device_module
from penstock.backends.torch.step.device import Accelerated
from penstock.backends.torch.step.nvidia import check_driver
from penstock.config.devices import CUDA
from penstock.core import DeviceLostError, PenstockError
from tests.limits import HANG

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ..."
NAMED = (
    r"GPU 1 \(NVIDIA Fake, PCI 0000:41:00\) is lost: CUDA error: an illegal memory access was "
    r"encountered\. .*Xid.*dmesg.*journalctl -k"
)


class FakeCuda:
    """Two GPUs. `error` is raised by what asks a stream or an event; `busy`: work does not end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.busy = False
        self.capability = (9, 0)
        self.own = threading.local()
        """`device` is a thread's GPU."""
        self.touched: set[int] = set()
        """GPUs that a thread was set to: CUDA makes a context on each."""
        fake = self

        class Event:
            def __init__(self, device: torch.device | None = None, **_: Any) -> None:
                self.device = device

            def record(self, _stream: object = None) -> None: ...

            def query(self) -> bool:
                if fake.error is not None:
                    raise fake.error
                return not fake.busy

            synchronize = query

            def elapsed_time(self, _other: object) -> float:
                return 2.0

        @contextlib.contextmanager
        def stream(own: Event) -> Iterator[None]:
            """As `torch.cuda.stream` does it."""
            before = fake.device
            fake.set_device(own.device)
            yield
            fake.set_device(before)

        own = types.SimpleNamespace(
            name="NVIDIA Fake", pci_domain_id=0, pci_bus_id=0x41, pci_device_id=0
        )
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "get_device_name": lambda _: own.name,
            "get_device_properties": lambda _: own,
            "get_device_capability": lambda _: self.capability,
            "Stream": Event,
            "Event": Event,
            "stream": stream,
            "set_device": self.set_device,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @property
    def device(self) -> torch.device:
        return getattr(self.own, "device", torch.device("cuda", 0))

    def set_device(self, device: torch.device) -> None:
        if device != self.device:
            self.touched.add(device.index)
        self.own.device = device


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), True),
        (RuntimeError(ILLEGAL), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling ..."), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: invalid configuration argument"), False),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_errors_that_end_a_context_are_told_from_others(error: Exception, lost: bool) -> None:
    assert is_loss(error) is lost


def test_a_gpu_that_is_lost_as_a_step_is_launched_is_named(cuda: FakeCuda) -> None:
    def work() -> None:
        raise torch.AcceleratorError(ILLEGAL)

    with pytest.raises(DeviceLostError, match=NAMED):
        Accelerated(CUDA, 1).start(work)


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_gpu_that_is_lost_while_a_step_runs_is_named(
    cuda: FakeCuda, timeout: float | None
) -> None:
    done = Accelerated(CUDA, 1).start(lambda: None)
    done.result(timeout)
    assert done.seconds == 0.002
    cuda.error = torch.AcceleratorError(ILLEGAL)
    with pytest.raises(DeviceLostError, match=NAMED):
        done.result(timeout)


def test_a_gpu_that_is_lost_in_a_copy_is_named(cuda: FakeCuda) -> None:
    gpu = Accelerated(CUDA, 1)
    copied = gpu.copies.to_host([])
    assert isinstance(copied, _DeviceCopied)
    assert copied.result() == 0.002
    cuda.error = RuntimeError(ILLEGAL)
    with pytest.raises(DeviceLostError, match=NAMED):
        copied.result()


def test_a_rank_touches_no_gpu_but_its_own(cuda: FakeCuda) -> None:
    """Neither where it was opened nor on threads of their own, such as those of the tiers."""
    gpu = Accelerated(CUDA, 1)
    with ThreadPoolExecutor(1) as thread:
        for submit in (thread.submit, lambda work: work()):
            submit(lambda: gpu.start(lambda: None).result())
            submit(lambda: gpu.copies.to_host([]).result())
    assert cuda.touched == {1}


def test_memory_that_is_short_is_no_loss(cuda: FakeCuda) -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Accelerated(CUDA, 0).start(work)


def test_a_stop_does_not_wait_for_a_gpu_that_is_lost_or_hangs(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_module, "CLOSE_S", 0.05)
    gpu = Accelerated(CUDA, 1)
    gpu.close()
    assert caplog.text == ""
    with caplog.at_level(logging.ERROR):
        cuda.busy = True
        gpu.close()
        cuda.error = torch.AcceleratorError(ILLEGAL)
        gpu.close()
    assert "GPU 1 (NVIDIA Fake, PCI 0000:41:00) has not ended its work" in caplog.text
    assert "illegal memory access" in caplog.text


def test_a_rank_without_a_gpu_says_how_many_there_are(cuda: FakeCuda) -> None:
    with pytest.raises(
        PenstockError, match=r"rank 2 of this host has no GPU: there are 2; lower --tensor-parallel"
    ):
        Accelerated(CUDA, 2)


def test_a_gpu_that_the_kernels_do_not_run_on_is_refused_by_name(cuda: FakeCuda) -> None:
    cuda.capability = (7, 5)
    with pytest.raises(
        PenstockError,
        match=r"GPU 1 \(NVIDIA Fake.*\) has compute capability 7\.5; the kernels need 8\.0",
    ):
        Accelerated(CUDA, 1)
    cuda.capability = (8, 0)
    Accelerated(CUDA, 1)


def test_a_driver_older_than_the_wheels_cuda_is_told_apart_from_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def old() -> None:
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 12040). Please update\nmore"
        )

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "init", old)
    with pytest.raises(
        PenstockError,
        match=r"too old \(found version 12040\).* built for CUDA 13\.2; CUDA 13 needs a driver "
        r"from 580 on",
    ):
        check_driver()
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    with pytest.raises(PenstockError, match="no GPU is visible; see CUDA_VISIBLE_DEVICES"):
        check_driver()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(PenstockError, match="this torch is built without CUDA"):
        check_driver()


class Nccl:
    """A process group whose end takes until it is `free`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.free = threading.Event()
        self.ended = threading.Event()
        self.error = error

    def shutdown(self) -> None:
        self.free.wait(HANG)
        self.ended.set()
        if self.error is not None:
            raise self.error

    def allreduce(self, _tensors: object) -> None:
        assert self.error is not None
        raise self.error


def test_nccl_is_shut_down_and_may_hang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (None, dist.DistBackendError("NCCL error: unhandled system error")):
        ends = Nccl(error)
        ends.free.set()
        LibraryGroup(ends, 0, 2).close()
        assert ends.ended.is_set()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    monkeypatch.setattr(group_module, "CLOSE_S", 0.05)
    hangs = Nccl()
    LibraryGroup(hangs, 0, 2).close()
    assert not hangs.ended.is_set(), "nobody waits for it"
    assert "NCCL has not ended" in caplog.text
    hangs.free.set()
    assert hangs.ended.wait(HANG)


def test_a_sum_on_a_gpu_that_is_lost_does_not_accuse_another_rank() -> None:
    for error, raised in (
        (torch.AcceleratorError(ILLEGAL), torch.AcceleratorError),
        (dist.DistBackendError("NCCL error: remote process exited"), ConnectionError),
    ):
        with pytest.raises(raised):
            LibraryGroup(Nccl(error), 0, 2).sum(torch.ones(1))
