"""Small sums through symmetric memory: what they give, and when the ranks keep NCCL."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock._native import Star
from penstock.backends.torch.ranks import symmetric
from penstock.backends.torch.ranks.symmetric import (
    CHECKED,
    KINDS,
    LARGEST,
    SymmetricGroup,
    agreed,
    is_small,
    obstacle,
)
from penstock.core import PenstockError
from tests.backends.torch.ranks.symmetric_ranks import Memory, Rank, on_processes
from tests.backends.torch.ranks.test_group import free_address

RANKS = 3
SHAPES = [(1, 64), (3, 40), (32, 4096), (33, 4096), (5, 7)]
"""Some are too large, or no multiple of 16 bytes."""
FAR = "CUDA driver error: peer access is not supported between these two devices"


def term(rank: int, shape: tuple[int, ...], kind: torch.dtype, turn: int) -> Tensor:
    """Numbers whose sum depends on the order."""
    drawn = torch.Generator().manual_seed(100 * turn + rank)
    return (torch.randn(shape, generator=drawn) * 10.0 ** (rank % 3)).to(kind)


def in_order(order: range, shape: tuple[int, ...], kind: torch.dtype, turn: int) -> Tensor:
    """The sum by one addition after the other, each of them rounded."""
    total = term(order[0], shape, kind, turn)
    for rank in order[1:]:
        total = total + term(rank, shape, kind, turn)
    return total


def turns() -> list[tuple[torch.dtype, int, tuple[int, ...]]]:
    return [(kind, turn, shape) for kind in KINDS for turn, shape in enumerate(SHAPES * 3)]


def sums(own: Rank, address: str, *, by_info: bool) -> dict[str, Any]:
    group, _ = own.open(address, Memory(own.rank, by_info=by_info))
    checked, delays, found = own.memory.calls, random.Random(own.rank), []
    # No turn may overwrite what a slower rank still reads of the one before.
    for kind, turn, shape in turns():
        time.sleep(delays.random() / 100)
        found.append(group.sum(term(own.rank, shape, kind, turn)))
    calls = own.memory.calls - checked
    counts = group.sum(torch.arange(8) * (own.rank + 1))
    columns = group.gather(torch.full((2, own.rank + 1), float(own.rank)), [1, 2, 3])
    tokens = group.share(torch.tensor([7, -1]) if own.rank == 0 else torch.zeros(2).long())
    kind, directories = type(group).__name__, os.listdir(own.directory)
    group.close()
    return {
        "kind": kind,
        "checked": checked,
        "found": found,
        "calls": calls,
        "counts": counts,
        "columns": columns,
        "tokens": tokens,
        "left": [
            name for name in directories if name.startswith("penstock-") and "sym" not in name
        ],
    }


def both_torches(own: Rank, addresses: list[str]) -> list[dict[str, Any]]:
    return [sums(own, addresses[0], by_info=False), sums(own, addresses[1], by_info=True)]


def test_sums_have_the_bits_of_the_order_of_ranks_on_all_of_them() -> None:
    """With a torch that finds registered groups, and with an older one that is given them."""
    answers = on_processes(both_torches, RANKS, [free_address(), free_address()])
    small = [is_small(term(0, shape, kind, turn)) for kind, turn, shape in turns()]
    assert {True, False} == set(small)
    for rank, each in enumerate(answers):
        for answer in each:
            assert answer["kind"] == SymmetricGroup.__name__
            assert answer["checked"] == 2 * len(KINDS) * len(CHECKED)
            assert answer["calls"] == sum(small)
            for (kind, turn, shape), found, own in zip(
                turns(), answer["found"], small, strict=True
            ):
                wanted = in_order(range(RANKS), shape, kind, turn)
                assert found.dtype == kind
                if own:
                    assert torch.equal(found, wanted)
                else:
                    torch.testing.assert_close(found, wanted, rtol=0.02, atol=2.0)
            assert answer["counts"].tolist() == [6 * i for i in range(8)]
            assert answer["tokens"].tolist() == [7, -1]
            assert (answer["columns"] is None) == (rank > 0)
            assert answer["left"] == [], "the directory where the ranks met"
    columns = answers[0][0]["columns"]
    assert columns.tolist() == [[0.0, 1.0, 1.0, 2.0, 2.0, 2.0]] * 2
    kind, turn, shape = turns()[2]
    other = in_order(range(RANKS)[::-1], shape, kind, turn)
    assert not torch.equal(other, in_order(range(RANKS), shape, kind, turn)), "the order matters"


def obstacles(own: Rank, addresses: list[str]) -> list[tuple[bool, list[float], list[str]]]:
    """For each case, whether the group is the one without symmetric memory, a sum of it, and what
    was logged.
    """
    lines: list[str] = []
    symmetric.log.info = lambda text, *words: lines.append(text % words)
    found = []
    for case, address in enumerate(addresses):
        lines.clear()
        memory = Memory(own.rank)
        if case == 0 and own.rank == 1:
            memory.fails = FAR
        if case == 1:
            memory.adds = 0.5 * (own.rank == 2)
        if case == 2:
            own.links[0][2] = own.links[2][0] = 0
        group, inner = own.open(address, memory)
        made = group.sum(torch.full((4,), 1.0 + own.rank))
        found.append((group is inner, made.tolist(), list(lines)))
    return found


def test_ranks_keep_nccl_together_and_the_first_one_says_why() -> None:
    addresses = [free_address() for _ in range(3)]
    reasons = (
        f"small sums go through NCCL: rank 1: {FAR}",
        "small sums go through NCCL: sums differ from NCCL's, or between ranks",
        "small sums go through NCCL: rank 0: GPUs 0 and 2 have no NVLink between them",
    )
    for rank, answer in enumerate(on_processes(obstacles, RANKS, addresses)):
        for (plain, made, lines), reason in zip(answer, reasons, strict=True):
            assert plain
            assert made == [6.0] * 4
            assert lines == ([reason] if rank == 0 else [])


def facts(**changed: object) -> list[dict[str, Any]]:
    """Facts of two ranks, the second one changed."""
    first = {"host": "a", "gpu": 0, "torch": "2.15.0", "at": "/somewhere"}
    return [first, {**first, "gpu": 1, **changed}]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"host": "b"}, "the ranks are on several hosts"),
        ({"torch": "2.11.0"}, "several versions of torch"),
        ({"gpu": 0}, "each rank sees a GPU of its own alone"),
        ({"gpu": 2}, "GPUs 0 and 2 have no NVLink between them"),
    ],
)
def test_what_ranks_lack_is_named(
    changed: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric, "nvlinks", lambda: [[0, 4, 0], [4, 0, 4], [0, 4, 0]])
    found = obstacle(facts(**changed), 0)
    assert reason in found
    assert bool(found) == bool(reason)


def test_no_directory_and_no_such_sum_are_reasons_too(monkeypatch: pytest.MonkeyPatch) -> None:
    without = facts()
    without[0]["at"] = ""
    assert "no temporary directory" in obstacle(without, 0)
    monkeypatch.setattr(torch.ops, "symm_mem", object())
    assert "has no such sum" in obstacle(facts(), 0)


def test_an_error_of_one_rank_is_a_reason_for_all_but_a_lost_gpu_ends_the_start() -> None:
    address = free_address()

    def work(rank: int) -> list[str]:
        star = Star(address, bytes(32), rank, 2, 1 << 16, 60.0)

        def fails() -> str:
            if rank == 1:
                raise OSError("no room for a descriptor\nand more")
            return ""

        return [agreed(star, fails), agreed(star, lambda: "")]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(2)))
    assert found == [["rank 1: no room for a descriptor", ""]] * 2

    def lost() -> str:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        agreed(None, lost)  # type: ignore[arg-type]


def test_a_check_that_hangs_ends_the_start_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same:
        def sum(self, x: Tensor) -> Tensor:
            return x

        def small_sum(self, x: Tensor) -> Tensor:
            return x

        def share(self, x: Tensor) -> Tensor:
            return x

    monkeypatch.setattr(symmetric, "ended", lambda _: False)
    with pytest.raises(PenstockError, match="--disable-custom-all-reduce"):
        symmetric.difference(Same(), Same(), 0, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "small"),
    [
        (torch.zeros(8, dtype=torch.bfloat16), True),
        (torch.zeros(LARGEST // 2, dtype=torch.bfloat16), True),
        (torch.zeros(LARGEST // 4), True),
        (torch.zeros(LARGEST // 4 + 4), False),
        (torch.zeros(7, dtype=torch.bfloat16), False),
        (torch.zeros(0), False),
        (torch.zeros(8, dtype=torch.float16), False),
        (torch.zeros(8, dtype=torch.int32), False),
        (torch.zeros(4, 8)[:, :4], False),
        (torch.zeros(12)[2:10], False),
        (torch.zeros(12)[4:12], True),
    ],
)
def test_sums_that_the_kernel_cannot_do_are_left_to_nccl(x: Tensor, small: bool) -> None:
    assert is_small(x) == small
