"""Ranks as processes, with symmetric memory in files that all of them map: what torch's CUDA code
promises and demands, on a CPU.

Process groups, their registry, their store and the schema of the operator are torch's own, and the
group beside it is gloo's. What the fakes demand is what `CUDASymmetricMemory.cu` and
`CUDASymmetricMemoryOps.cu` check, or read beyond.
"""

from __future__ import annotations

import multiprocessing
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from penstock._native import Star
from penstock.backends.torch.ranks import symmetric
from penstock.backends.torch.ranks.group import Group, LibraryGroup
from tests.limits import HANG

PAD = 64
"""Bytes behind a buffer: the steps that its rank has reached."""


class Memory:
    """The symmetric memory of one rank."""

    def __init__(
        self, rank: int, *, by_info: bool = False, fails: str = "", adds: float = 0.0
    ) -> None:
        """`by_info`: an older torch, which knows groups by `set_group_info`; `fails`: the error of
        a rendezvous; `adds`: what a sum of this rank has too much.
        """
        self.rank, self.by_info, self.fails, self.adds = rank, by_info, fails, adds
        self.infos: dict[str, tuple[int, int, dist.Store]] = {}
        self.files: dict[int, Path] = {}
        """By address of the memory."""
        self.groups: dict[tuple[str, int], list[Tensor]] = {}
        """Buffers of all ranks with their pads, by group and address of one's own."""
        self.steps: dict[tuple[str, int], int] = {}
        self.calls = 0

    def empty_strided_p2p(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> Tensor:
        assert isinstance(size, tuple)
        assert tuple(stride) == (1,)
        assert device.type == "cpu"
        with tempfile.NamedTemporaryFile(prefix="penstock-symmetric-", delete=False) as held:
            held.truncate(size[0] * dtype.itemsize + PAD)
        whole = torch.from_file(held.name, True, size[0] + PAD, dtype=dtype)
        self.files[whole.data_ptr()] = Path(held.name)
        return whole[: size[0]]

    def set_group_info(self, name: str, rank: int, ranks: int, store: dist.Store) -> None:
        assert self.by_info, "a torch that finds registered groups was given one"
        assert name not in self.infos
        self.infos[name] = (rank, ranks, store)

    def rendezvous(self, tensor: Tensor, group_name: str | None = None) -> object:
        """Collective. Ranks meet in the store of the group, and map one another's buffers."""
        assert group_name is not None
        if self.by_info:
            if group_name not in self.infos:
                raise RuntimeError(
                    f"get_group_info: no group info associated with the group name {group_name}"
                )
            rank, ranks, store = self.infos[group_name]
        else:
            group = c10d._resolve_process_group(group_name)
            rank, ranks, store = group.rank(), group.size(), group.get_group_store()
        if self.fails:
            raise RuntimeError(self.fails)
        assert rank == self.rank
        address = tensor.untyped_storage().data_ptr()
        store.set(f"memory/{rank}", str(self.files[address]))
        paths = [store.get(f"memory/{i}").decode() for i in range(ranks)]
        size = tensor.nbytes + PAD
        mapped = [torch.from_file(path, True, size, dtype=torch.uint8) for path in paths]
        store.set(f"mapped/{rank}", "")
        store.wait([f"mapped/{i}" for i in range(ranks)])
        self.groups[group_name, address], self.steps[group_name, address] = mapped, 0
        return object()

    def one_shot(self, own: Tensor, reduce_op: str, group_name: str, out: Tensor) -> Tensor:
        """`symm_mem::one_shot_all_reduce_out`."""
        self.calls += 1
        c10d._resolve_process_group(group_name)
        assert reduce_op == "sum"
        assert own.is_contiguous()
        assert out.is_contiguous()
        assert out.shape == own.shape
        assert out.dtype == own.dtype
        assert own.dtype in (torch.float32, torch.bfloat16)
        offset = own.storage_offset() * own.itemsize
        for size in (offset, own.nbytes):
            assert size % max(4, own.itemsize) == 0, "not aligned"
        key = (group_name, own.untyped_storage().data_ptr())
        mapped = self.groups[key]
        assert own.nbytes + offset + PAD <= len(mapped[self.rank]), "it reads beyond the buffer"
        self._barrier(key)
        total: Tensor | None = None
        for buffer in mapped:
            part = buffer[offset : offset + own.nbytes].view(own.dtype).view(own.shape)
            # Rounded at each step.
            total = part.clone() if total is None else total + part
        assert total is not None
        # Written only when all ranks have read.
        self._barrier(key)
        out.copy_(total + self.adds)
        return out

    def _barrier(self, key: tuple[str, int]) -> None:
        self.steps[key] += 1
        step, pads = self.steps[key], [buffer[-PAD:].numpy() for buffer in self.groups[key]]
        pads[self.rank][:8] = list(struct.pack("<q", step))
        end = time.monotonic() + HANG
        while any(struct.unpack("<q", bytes(pad[:8]))[0] < step for pad in pads):
            if time.monotonic() > end:
                raise RuntimeError("a peer did not come")
            time.sleep(0)


class Rank:
    """What a test's work gets: the fakes in place of torch's CUDA code, in its own process."""

    def __init__(self, rank: int, ranks: int, directory: Path) -> None:
        self.rank, self.ranks, self.directory = rank, ranks, directory
        self.memory = Memory(rank)
        self.links = [[int(a != b) for b in range(ranks)] for a in range(ranks)]
        """NVLinks of the machine that this one stands for."""
        self._library = torch.library.Library("symm_mem", "IMPL")
        self._library.impl("one_shot_all_reduce_out", self._sum, "CPU")
        facts = symmetric.own_facts
        symmetric.own_facts = lambda device: facts(device) | {"gpu": rank}
        symmetric.nvlinks = lambda: self.links
        symmetric.CHECK_S = 3.0

    def _sum(self, buffer: Tensor, reduce_op: str, group_name: str, out: Tensor) -> Tensor:
        return self.memory.one_shot(buffer, reduce_op, group_name, out)

    def open(self, address: str, memory: Memory | None = None) -> tuple[Group, Group]:
        """The group with symmetric memory, and gloo's beside it."""
        self.memory = memory or Memory(self.rank)
        c10d._SymmetricMemory = self.memory  # type: ignore[misc,assignment]
        store = dist.FileStore(str(self.directory / address.replace(":", "-")), self.ranks)
        backend = dist.ProcessGroupGloo(store, self.rank, self.ranks, timedelta(seconds=HANG))
        inner = LibraryGroup(backend, self.rank, self.ranks)
        star = Star(address, bytes(32), self.rank, self.ranks, 1 << 16, HANG)
        device = torch.device("cpu")
        made = symmetric.with_symmetric(inner, star, address, self.rank, self.ranks, device)
        return made, inner


def on_processes(work: Callable[..., Any], ranks: int, *given: Any) -> list[Any]:
    """What `work(rank, *given)` returned on each rank; an error of one ends the test."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, context.Pool(ranks) as pool:
        futures = [
            pool.apply_async(_run, (work, rank, ranks, Path(directory), given, sys.path))
            for rank in range(ranks)
        ]
        return [each.get(HANG) for each in futures]


def _run(
    work: Callable[..., Any],
    rank: int,
    ranks: int,
    directory: Path,
    given: tuple[Any, ...],
    paths: list[str],
) -> Any:
    sys.path[:] = paths
    torch.set_num_threads(1)
    tempfile.tempdir = str(directory)
    return work(Rank(rank, ranks, directory), *given)
