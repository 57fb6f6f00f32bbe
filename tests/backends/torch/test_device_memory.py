"""Work beside the steps on a fake GPU: loading of weights, KV blocks to the host and back,
quantised experts, checks at the start. The first tests are those of the fake GPU itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock.backends.torch.async_copy import DeviceCopies
from penstock.backends.torch.kernels import crc64, experts, linear, sort_by_expert
from penstock.backends.torch.kernels.checksum import _tables
from penstock.backends.torch.kv.pool import make_pools
from penstock.backends.torch.load.checkpoint import Stored
from penstock.backends.torch.load.dequant import BLOCKS
from penstock.backends.torch.load.packed_experts import Cut, kept_form
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.load.uploads import DeviceStream, PlainReads, Ring, Uploads
from penstock.backends.torch.ranks.group import LibraryGroup
from penstock.backends.torch.ranks.ray_communicator import Accelerator, Pair
from penstock.backends.torch.ranks.symmetric import LARGEST, SymmetricGroup, difference
from penstock.core.transfer import RAM, TransferKind
from penstock.model.spec import Recipe
from tests.backends.torch import fake_kernels
from tests.backends.torch.fake_cuda import GPU, OnGpu, Watch, capturing, fake_cuda
from tests.backends.torch.fake_kernels import bare, wrapped
from tests.backends.torch.fake_library import Nccl
from tests.backends.torch.kv import test_staging
from tests.backends.torch.kv.test_staging import Moving
from tests.backends.torch.load.test_weights import random_bytes, read_codes, stored
from tests.executor.worker.test_kv_mover import disk

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.gpu import cases
from benchmarks.gpu.cases import Maker


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    with fake_cuda() as made:
        fake_kernels.install(monkeypatch)
        yield made
        _tables.cache_clear()


REFUSED: list[Callable[[Tensor, Tensor], object]] = [
    lambda gpu, host: gpu + host,
    lambda gpu, host: torch.cat([gpu, host]),
    lambda gpu, host: host[gpu.long()],
    lambda gpu, host: gpu.index_copy(0, torch.arange(2), gpu[:2]),
    lambda gpu, host: torch.nn.functional.embedding(torch.arange(2), gpu),
    torch.nn.functional.linear,
    lambda gpu, host: gpu.pin_memory(),
    lambda gpu, host: gpu.numpy(),
]
WAITING: list[Callable[[Tensor, Tensor], object]] = [
    lambda gpu, host: gpu.sum().item(),
    lambda gpu, host: bool((gpu > 0).any()),
    lambda gpu, host: int(gpu[0, 0]),
    lambda gpu, host: gpu.tolist(),
    lambda gpu, host: gpu.nonzero(),
    lambda gpu, host: gpu[gpu > 0],
    lambda gpu, host: gpu.unique(),
    lambda gpu, host: torch.equal(gpu, gpu),
    lambda gpu, host: gpu.cpu(),
    lambda gpu, host: host.to(GPU),
    lambda gpu, host: gpu.copy_(host),
    lambda gpu, host: host.to(GPU, non_blocking=True),
    lambda gpu, host: host.pin_memory().to(GPU),
    lambda gpu, host: torch.tensor([1, 2], device=GPU),
    lambda gpu, host: gpu[torch.arange(2)],
    lambda gpu, host: torch.repeat_interleave(gpu[0].long()),
    lambda gpu, host: torch.cuda.synchronize(),
    lambda gpu, host: torch.cuda.current_stream().synchronize(),
]
FREE: list[Callable[[Tensor, Tensor], object]] = [
    lambda gpu, host: host.pin_memory().to(GPU, non_blocking=True),
    lambda gpu, host: torch.empty(4, 4, pin_memory=True).copy_(gpu, non_blocking=True),
]
CAPTURED: list[Callable[[Tensor, Tensor], object]] = [
    lambda gpu, host: gpu * 2.0 + torch.arange(4, device=GPU),
    lambda gpu, host: gpu.masked_fill(gpu > 0, 3.0).index_copy_(0, gpu[0].long(), gpu),
    lambda gpu, host: torch.where(gpu > 0, 0.0, gpu),
    lambda gpu, host: torch.repeat_interleave(gpu[0].long(), output_size=4),
]


@pytest.mark.parametrize("inference", [False, True])
def test_the_watch_sees_what_it_is_for(watch: Watch, inference: bool) -> None:
    with torch.inference_mode(inference):
        gpu, host = torch.ones(4, 4, device=GPU), torch.ones(4, 4)
        assert (gpu.device, gpu.is_cuda, host.device.type) == (GPU, True, "cpu")
        for wrong in REFUSED:
            with pytest.raises((AssertionError, RuntimeError, TypeError)):
                wrong(gpu, host)
        for waiting in WAITING:
            watch.waits.clear()
            waiting(gpu, host)
            assert watch.waits
        watch.waits.clear()
        for free in (*FREE, *CAPTURED):
            free(gpu, host)
        assert watch.waits == []
        for wrong in (*REFUSED, *WAITING, *FREE, lambda *_: torch.ones(2)):
            with capturing(), pytest.raises((AssertionError, RuntimeError, TypeError)):
                wrong(gpu, host)
        with capturing():
            for captured in CAPTURED:
                captured(gpu, host)


def test_a_copy_to_the_host_arrives_when_it_is_waited_for(watch: Watch) -> None:
    gpu, host = torch.ones(4, device=GPU), torch.zeros(4, pin_memory=True)
    before, behind = torch.cuda.Event(), torch.cuda.Event()
    before.record()
    host.copy_(gpu, non_blocking=True)
    behind.record()
    gpu.fill_(2.0)
    before.synchronize()
    assert host.tolist() == [0.0] * 4
    behind.synchronize()
    assert host.tolist() == [1.0] * 4
    assert [wait.behind for wait in watch.waits] == [2, 1]


@contextmanager
def sources(*tensors: Stored) -> Iterator[tuple[Source, Source]]:
    """On the host, and on the GPU by way of pinned buffers."""
    found = {each.name: each for each in tensors}
    with Uploads(Ring(DeviceStream(GPU), GPU, 4, 256), readers=2) as uploads:
        yield (
            Source(found, torch.float32, PlainReads()),  # type: ignore[arg-type]
            Source(found, torch.float32, uploads),  # type: ignore[arg-type]
        )


def same(found: object, expected: object) -> None:
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, other in pairs:
        assert isinstance(one, OnGpu)
        assert torch.equal(one.host.view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", BLOCKS)
def test_quantised_weights_are_dequantised_on_the_gpu(dtype: str, watch: Watch) -> None:
    torch.manual_seed(5)
    numbers, size = BLOCKS[dtype]
    blocks = random_bytes(40, 2, size)
    blocks[..., [0, 1, 2, 3, size - 2, size - 1]] = 17
    width = 2 * numbers
    with sources(stored("w", dtype, blocks, 40, width)) as (host, gpu):
        for recipe in (Recipe("w"), Recipe("w", interleaved=8)):
            args = (recipe, 40, width, range(8, 24), range(width))
            found = gpu.matrix(*args)
            gpu.settle()
            same(found, host.matrix(*args))
        gpu.check_finite()


def test_weights_with_scales_arrive_on_the_gpu(watch: Watch) -> None:
    torch.manual_seed(5)
    with sources(
        stored("f", "F8_E4M3", torch.randn(256, 256).to(torch.float8_e4m3fn)),
        stored("fs", "F32", torch.rand(2, 2) + 0.5),
        stored("m", "U8", random_bytes(3, 80, 3, 16)),
        stored("ms", "U8", torch.randint(110, 140, (3, 80, 3), dtype=torch.uint8)),
    ) as (host, gpu):
        fp8 = Recipe("f", scales="fs")
        mxfp4 = Recipe("m", rows=(0, 40), interleaved=80, expert=1, scales="ms")
        for recipe, cut in (
            (fp8, Cut(256, 256, range(128, 256), range(256))),
            (fp8, Cut(256, 256, range(256), range(128, 256))),
            (mxfp4, Cut(40, 96, range(8, 24), range(32, 64))),
        ):
            form = kept_form(gpu, recipe, cut)
            same(read_codes(gpu, recipe, form, cut), read_codes(host, recipe, form, cut))
            args = (cut.n, cut.k, cut.rows, cut.cols)
            found = gpu.matrix(recipe, *args)
            gpu.settle()
            same(found, host.matrix(recipe, *args))
        args = (256, 256, range(16, 80), range(256))
        turned = Recipe("f", scales="fs", interleaved=16)
        found = gpu.matrix(turned, *args)
        gpu.settle()
        same(found, host.matrix(turned, *args))
        gpu.check_finite()


@pytest.mark.parametrize("form", ["plain", "fp8_block", "mxfp4"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_quantised_experts_wait_for_nothing(form: str, elsewhere: bool, watch: Watch) -> None:
    for rows in (1, 70):
        case = cases.mixtures(
            Maker(torch.float32), form, rows, 2, 4, 160, 96, bias=True, elsewhere=elsewhere
        )
        # Of two experts, where codes are widened.
        for scratch in (None, OnGpu(torch.empty(2 * 192 * 160))):
            with capturing():
                found = experts(*wrapped(case.args), **case.options, scratch=scratch)
            assert torch.allclose(bare(found), case.reference(*case.args, **case.options))
        case = cases.dense(Maker(torch.float32), form, rows, 70, 160, bias=True)
        with capturing():
            found = linear(*wrapped(case.args))
        assert torch.allclose(bare(found), case.reference(*case.args))
    assert watch.waits == []


def test_rows_of_many_experts_are_sorted_without_a_wait(watch: Watch) -> None:
    indices = torch.randint(0, 9, (3000, 3), dtype=torch.int32)
    with capturing():
        found = sort_by_expert(wrapped(indices), 8)
    assert [each.dtype for each in found] == [torch.int32] * 3
    assert torch.equal(bare(found[1]), torch.bincount(indices.flatten(), minlength=9)[:8].cumsum(0))


def test_blocks_go_to_the_host_and_come_back(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of staging chunks and of the RAM tier, on threads of their own."""
    monkeypatch.setattr(
        test_staging, "make_pools", lambda layouts, counts, _: make_pools(layouts, counts, GPU)
    )
    moving = Moving(DeviceCopies(GPU), disk(tmp_path))  # type: ignore[arg-type]
    try:
        watch.waits.clear()
        assert moving.move(TransferKind.STORE, 1, [3, 9], name=1).done
        assert moving.move(TransferKind.STORE, RAM, [5], slots=[2]).done
        moving.forget()
        assert moving.move(TransferKind.LOAD, 1, [4, 7], name=1).done
        assert moving.move(TransferKind.LOAD, RAM, [6], slots=[2]).done
        assert watch.waits == [], "memory that is not pinned"
        found = [moving.values(group, block) for group in range(2) for block in (4, 7, 6)]
        assert found == [{value} for value in (3.0, 9.0, 5.0, 103.0, 109.0, 105.0)]
    finally:
        moving.mover.close(5.0)
    assert watch.registered == []


@pytest.mark.parametrize("overlap", [False, True])
def test_rows_go_to_another_rank_from_the_gpu(overlap: bool, watch: Watch) -> None:
    accelerator = Accelerator("cuda:0", overlap, pytest.fail)
    ends = [Pair(Nccl(), rank, accelerator) for rank in range(2)]
    for _ in range(2):
        ends[0].send(torch.ones(3, 4, device=GPU))
        assert isinstance(ends[1].receive(torch.Size((3, 4)), torch.bfloat16), OnGpu)
    # At most one tensor ahead, or none.
    assert len(watch.waits) == (1 if overlap else 4)


def test_small_sums_are_compared_on_the_gpu(watch: Watch) -> None:
    inner = LibraryGroup(Nccl(), 0, 2)
    buffer = torch.zeros(LARGEST, dtype=torch.uint8, device=GPU)
    assert difference(SymmetricGroup(inner, buffer, "ranks"), inner, 0, GPU) == ""


def test_checksums_are_computed_on_the_gpu(watch: Watch) -> None:
    memories = [torch.randint(0, 99, (words,)) for words in (300, 1, 5000)]
    expected = crc64(memories)
    assert DeviceCopies(GPU).crc64([OnGpu(each) for each in memories]) == expected
    assert {wait.places[0] for wait in watch.waits} == {
        "kernels/checksum.py:_tables",
        "kernels/checksum.py:crc64",
    }
