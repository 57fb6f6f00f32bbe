"""The ranks of a stage as threads: sums over streams, and what NCCL's ranks exchange first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from penstock._native import Star
from penstock.backends.torch.ranks.group import (
    Group,
    LibraryGroup,
    StarStore,
    StreamGroup,
    from_bytes,
    to_bytes,
)
from penstock.backends.torch.ranks.ranks import open_group
from penstock.config.machine import free_port
from tests.limits import HANG

KEY = bytes(range(32))
RANKS = 3
WIDTHS = [5, 4, 7]

T = TypeVar("T")


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def wiring(address: str, rank: int, key: bytes = KEY) -> dict[str, Any]:
    sizes = {"rank": rank, "ranks": RANKS, "capacity": 40_000}
    return {"kind": "stream", "address": address, "key": key.hex(), **sizes}


def on_ranks(work: Callable[[int, dict[str, Any]], T]) -> list[T]:
    address = free_address()
    with ThreadPoolExecutor(RANKS) as pool:
        futures = [pool.submit(work, rank, wiring(address, rank)) for rank in range(RANKS)]
        return [each.result(HANG) for each in futures]


def opened(at: dict[str, Any], device: str = "cpu") -> Group:
    return open_group(at, WIDTHS, torch.device(device), HANG, symmetric=False)


def term(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """Numbers whose sum depends on the order."""
    numbers = torch.Generator().manual_seed(10 * size + rank)
    large = torch.randn(size, generator=numbers) * 10.0 ** ((size + rank) % 5)
    return large.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_in_the_order_of_ranks_and_rounded_once(dtype: torch.dtype) -> None:
    sizes = [1, 2, 7, 31, 577, 4096, 39_999]

    def work(rank: int, at: dict[str, Any]) -> list[Tensor]:
        group, delays = opened(at), random.Random(rank)
        found = []
        for size in sizes:
            time.sleep(delays.random() / 50)
            found.append(group.sum(term(rank, size, dtype)))
        return found

    def wanted(order: range) -> list[Tensor]:
        sums = []
        for size in sizes:
            total = torch.zeros(size)
            for rank in order:
                total = total + term(rank, size, dtype).float()
            sums.append(total.to(dtype))
        return sums

    for found in on_ranks(work):
        for got, want in zip(found, wanted(range(RANKS)), strict=True):
            assert got.dtype == dtype
            assert torch.equal(got, want)
    if dtype == torch.float32:
        others = zip(wanted(range(RANKS)), wanted(range(RANKS)[::-1]), strict=True)
        assert not all(torch.equal(one, other) for one, other in others), "the order matters"


def test_columns_come_to_the_first_rank_and_tokens_from_it() -> None:
    whole = torch.arange(6 * sum(WIDTHS), dtype=torch.float32).view(6, -1)

    def work(rank: int, at: dict[str, Any]) -> tuple[Tensor | None, Tensor]:
        group = opened(at)
        logits = group.gather(whole.split(WIDTHS, 1)[rank], WIDTHS)
        tokens = torch.tensor([7, -1, 0], dtype=torch.int32)
        return logits, group.share(tokens if rank == 0 else torch.zeros_like(tokens))

    found = on_ranks(work)
    assert found[0][0] is not None
    assert torch.equal(found[0][0], whole)
    assert [logits for logits, _ in found[1:]] == [None, None]
    assert all(tokens.tolist() == [7, -1, 0] for _, tokens in found)


def test_a_rank_that_is_gone_ends_the_sum_of_the_others() -> None:
    def work(rank: int, at: dict[str, Any]) -> str:
        group = opened(at)
        assert isinstance(group, StreamGroup)
        group.sum(torch.ones(3))
        if rank == 1:
            return "gone, and its streams with it"
        with pytest.raises(ConnectionError) as caught:
            group.sum(torch.ones(3))
        return str(caught.value)

    assert on_ranks(work)[0].startswith("rank 1 of the group:")


def test_a_caller_with_another_key_is_no_rank() -> None:
    address = free_address()
    with ThreadPoolExecutor(1) as pool:
        first = open_group(wiring(address, 0), WIDTHS, torch.device("cpu"), 3.0, symmetric=False)
        waiting = pool.submit(first.sum, torch.ones(3))
        stranger = open_group(
            wiring(address, 1, bytes(32)), WIDTHS, torch.device("cpu"), 3.0, symmetric=False
        )
        with pytest.raises(ConnectionError, match="does not hold the key"):
            stranger.sum(torch.ones(3))
        with pytest.raises(ConnectionError, match="rank 1 said nothing for 3 s"):
            waiting.result(HANG)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (5, 7)])
def test_tensors_are_bytes_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).mul(100).to(dtype)
    assert torch.equal(from_bytes(to_bytes(x), dtype, x.shape), x)
    with pytest.raises(ConnectionError, match="another step"):
        from_bytes(to_bytes(x) + b"\0", dtype, x.shape)


def test_a_store_carries_the_first_ranks_values_through_torchs_own_code() -> None:
    """`PrefixStore` is C++, as NCCL's caller is."""

    def work(rank: int, at: dict[str, Any]) -> list[bytes]:
        store = StarStore(Star(at["address"], KEY, rank, RANKS, 1 << 16, HANG), rank)
        inner = dist.PrefixStore("nccl", store)
        if rank == 0:
            inner.set("0", b"\0id\xff")
            inner.set("0:1", b"of two")
            return []
        # One of them is not wanted on rank 1; the order is not that of the setting.
        wanted = ["0:1", "0"] if rank == 2 else ["0"]
        inner.wait(wanted, timedelta(seconds=HANG))
        assert inner.check(wanted)
        assert not inner.check(["other"])
        assert (inner.add("count", 2), inner.add("count", 3)) == (2, 5)
        return [inner.get(key) for key in wanted]

    assert on_ranks(work) == [[], [b"\0id\xff"], [b"of two", b"\0id\xff"]]


def test_ranks_of_nccl_get_the_unique_id_over_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeNccl:
        def __init__(self, store: dist.Store, rank: int, ranks: int, wait: timedelta) -> None:
            if rank == 0:
                store.set("0", b"unique")
            assert (ranks, wait) == (RANKS, timedelta(seconds=HANG))
            self.unique_id = store.get("0")

    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    groups = on_ranks(lambda _, at: opened(at, "cuda"))
    assert all(isinstance(group, LibraryGroup) for group in groups)
    ids = [group._group.unique_id for group in groups]  # type: ignore[attr-defined]
    assert ids == [b"unique"] * RANKS
