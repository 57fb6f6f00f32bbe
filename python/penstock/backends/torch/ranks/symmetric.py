"""Small all-reduces between the GPUs of one host, through memory that all of them map.

Each rank copies its part into its own buffer. torch's one-shot all-reduce then reads all buffers
and adds them in rank order: a single signal exchange in place of a ring's steps, and bitwise the
same result on all ranks. (`multimem`, where the switch adds, guarantees no order.)

At start-up all ranks agree on symmetric memory, or all use NCCL. The kernel waits for its peers
without a time-out, so it must not run unless every rank has symmetric memory. A check that hangs
aborts the start.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.backends.torch.async_copy import wait_for
from penstock.backends.torch.device_lost import is_loss
from penstock.backends.torch.ranks.group import Group
from penstock.backends.torch.runtime import accelerated, runtime
from penstock.core import PenstockError

if TYPE_CHECKING:
    from penstock._native import Star

LARGEST = 256 << 10
"""Maximum bytes of a tensor summed here. Each rank reads the tensors of all others, while in NCCL's
ring it moves the size of two in total. At this size each of eight ranks reads 1.8 MB, 4 us over
NVLink at 450 GB/s. The size at which NCCL becomes faster has not been measured (benchmarks/gpu
compares both).
"""
MULTIPLE = 16
"""The kernel moves 16 bytes at a time. NCCL sums the tensors whose size or alignment is not a
multiple of 16 bytes.
"""
KINDS = (torch.bfloat16, torch.float32)
"""Element types that the kernel supports."""
CHECKED = (16, 48, 8 << 10, 10 << 10, 65 << 10, LARGEST)
"""Sizes in bytes of the tensors summed in the start-up check: within one thread block of the
kernel, in several, and the maximum.
"""
CHECK_S = 30.0
"""Seconds after which mapping the memory, or the sums of the start-up check, count as failed."""
REMEDY = "Start with --disable-custom-all-reduce, which leaves all sums to NCCL"

_KEPT: list[tuple[Tensor, dist.ProcessGroup]] = []
"""Buffers and groups that are kept until the process ends. Freeing a buffer waits for its GPU,
which may hang; and torch's registry does not own a group.
"""

log = logging.getLogger(__name__)


class SymmetricGroup:
    """A rank group that sums small tensors through symmetric memory and does everything else by
    `inner`.
    """

    def __init__(self, inner: Group, buffer: Tensor, name: str) -> None:
        """`buffer` has LARGEST bytes and is mapped by all ranks of the group `name`."""
        self.inner = inner
        self._buffer = buffer
        self._name = name

    def sum(self, x: Tensor) -> Tensor:
        return self.small_sum(x) if is_small(x) else self.inner.sum(x)

    def small_sum(self, x: Tensor) -> Tensor:
        part = self._buffer[: x.nbytes].view(x.dtype).view(x.shape)
        # Copy by a separate kernel. torch's combined variant signals before all of its threads have
        # copied.
        part.copy_(x)
        # The kernel ends when all ranks have read, so the next copy cannot overwrite unread data.
        return torch.ops.symm_mem.one_shot_all_reduce_out(part, "sum", self._name, x)

    def gather(self, columns: Tensor, widths: list[int]) -> Tensor | None:
        return self.inner.gather(columns, widths)

    def share(self, x: Tensor) -> Tensor:
        return self.inner.share(x)

    def close(self) -> None:
        self.inner.close()
        unregister(self._name)


def is_small(x: Tensor) -> bool:
    """True if symmetric memory can sum `x`. All ranks of a group get the same answer, as it depends
    only on the step.
    """
    return (
        x.dtype in KINDS
        and x.is_contiguous()
        and 0 < x.nbytes <= LARGEST
        and x.nbytes % MULTIPLE == 0
        and x.storage_offset() * x.itemsize % MULTIPLE == 0
    )


def with_symmetric(
    inner: Group, star: Star, name: str, rank: int, ranks: int, device: torch.device
) -> Group:
    """`inner`, extended by small sums through symmetric memory if all ranks support it. Otherwise
    `inner` unchanged, and the reason is logged. All ranks of the group must call this. `name`
    identifies the group within the process.
    """
    made: list[SymmetricGroup] = []
    directory = temporary() if rank == 0 else ""
    facts = together(star, own_facts(device) | {"at": directory})

    def join() -> str:
        buffer = mapped(facts[0]["at"], name, rank, ranks, device)
        made.append(SymmetricGroup(inner, buffer, name))
        return ""

    try:
        reason = agreed(star, lambda: obstacle(facts, rank)) or agreed(star, join)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if not reason:
        reason = difference(made[0], inner, rank, device)
    if reason:
        unregister(name)
    if rank == 0 and reason:
        log.info("small sums go through NCCL: %s", reason)
    elif rank == 0:
        log.info("sums up to %d KiB go through symmetric memory", LARGEST >> 10)
    return inner if reason else made[0]


def together(star: Star, own: Any) -> list[Any]:
    """All-gather: the JSON values `own` of all ranks, in rank order."""
    others = star.gather(json.dumps(own).encode())
    if others is None:
        found: list[Any] = json.loads(star.share(b"") or b"")
        return found
    everything = [own, *(json.loads(other) for other in others)]
    star.share(json.dumps(everything).encode())
    return everything


def agreed(star: Star, work: Callable[[], str]) -> str:
    """Run `work` on all ranks; it returns the reason of a failure, or raises. Returns the reason of
    one rank that failed; empty if all succeeded. A rank that timed out waiting for another is
    chosen only if no other rank failed, because the other rank has the cause.
    """
    waited = False
    try:
        reason = work()
    except (RuntimeError, OSError, AttributeError) as error:
        # A driver error can also mean that an operation is not supported.
        if is_loss(error) and not str(error).startswith("CUDA driver error"):
            raise
        # The file store raises no specific exception type for timeouts.
        waited = "timeout" in str(error).lower()
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    found = enumerate(together(star, [waited, reason]))
    reasons = [(waited, f"rank {rank}: {reason}") for rank, (waited, reason) in found if reason]
    return min(reasons)[1] if reasons else ""


def temporary() -> str:
    """A private temporary directory; empty if it cannot be created."""
    try:
        return tempfile.mkdtemp(prefix="penstock-")
    except OSError:
        return ""


def own_facts(device: torch.device) -> dict[str, Any]:
    return {"host": host(), "gpu": device.index, "torch": torch.__version__}


def host() -> str:
    """Text that identifies this host and PID namespace. Ranks with the same identity can exchange
    files and descriptors.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


def obstacle(facts: list[dict[str, Any]], rank: int) -> str:
    """Reason why ranks with these `own_facts` cannot use symmetric memory, from the view of rank
    `rank`; empty if they can.
    """
    hosts, gpus = ({fact[what] for fact in facts} for what in ("host", "gpu"))
    if not facts[0]["at"]:
        return "the first rank has no temporary directory to meet in"
    if len(hosts) > 1:
        return "the ranks are on several hosts, or in several containers of one"
    if len({fact["torch"] for fact in facts}) > 1:
        return "the ranks have several versions of torch"
    if len(gpus) < len(facts):
        return "each rank sees a GPU of its own alone, not those of the others"
    if not hasattr(torch.ops.symm_mem, "one_shot_all_reduce_out"):
        return f"torch {torch.__version__} has no such sum"
    own, links = facts[rank]["gpu"], nvlinks()
    apart = [gpu for gpu in sorted(gpus - {own}) if not links[own][gpu]]
    # Signals are atomic operations on a peer's memory, which GPUs do not support across PCIe.
    return f"GPUs {own} and {apart[0]} have no NVLink between them" if apart else ""


def nvlinks() -> list[list[int]]:
    """Matrix with the number of NVLinks between each two visible GPUs."""
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _detect_dma_connectivity

    found: list[list[int]] = _detect_dma_connectivity(DeviceType.CUDA, "nvlink").matrix
    return found


def mapped(directory: str, name: str, rank: int, ranks: int, device: torch.device) -> Tensor:
    """A buffer of LARGEST bytes on this rank's GPU, mapped by all ranks. They exchange its handles
    through files in `directory`.
    """
    from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory

    # A file store is accessible to this user only. A TCP store would open a port to others.
    store = dist.FileStore(f"{directory}/ranks", ranks)
    store.set_timeout(timedelta(seconds=CHECK_S))
    group = dist.ProcessGroup(store, rank, ranks)
    group._set_group_name(name)
    _register_process_group(name, group)
    buffer: Tensor = _SymmetricMemory.empty_strided_p2p((LARGEST,), (1,), torch.uint8, device)
    _KEPT.append((buffer, group))
    try:
        _SymmetricMemory.rendezvous(buffer, name)
    except RuntimeError as error:
        if "no group info" not in str(error):
            raise
        # This version of torch does not look up registered groups. Newer versions must not get
        # group info here: they would query the store at each sum.
        _SymmetricMemory.set_group_info(name, rank, ranks, store)
        _SymmetricMemory.rendezvous(buffer, name)
    return buffer


def unregister(name: str) -> None:
    from torch._C._distributed_c10d import _unregister_process_group

    try:
        _unregister_process_group(name)
    except RuntimeError:
        log.debug("the group %s was not registered", name)


def difference(group: SymmetricGroup, inner: Group, rank: int, device: torch.device) -> str:
    """Check the sums through symmetric memory against those by `inner`, on all ranks. Returns a
    description of a difference; empty if there is none. Integers must match exactly, because their
    sum is exact in any order. Other values must be bitwise the same as on the first rank.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    for kind in KINDS:
        for size in CHECKED:
            drawn = torch.Generator().manual_seed(size + rank)
            count = size // kind.itemsize
            whole = torch.randint(-8, 9, (count,), generator=drawn).to(device, kind)
            parts = torch.randn(count, generator=drawn).to(device, kind)
            pairs.append((group.small_sum(whole.clone()), inner.sum(whole)))
            found = group.small_sum(parts)
            pairs.append((found, inner.share(found.clone())))
    if not ended(device):
        raise PenstockError(
            f"small sums between GPUs have not ended after {CHECK_S:.0f} s. {REMEDY}"
        )
    wrong = sum(not torch.equal(found, wanted) for found, wanted in pairs)
    counts = inner.sum(torch.tensor([float(wrong)], device=device))
    return "sums differ from NCCL's, or between ranks" if counts.item() else ""


def ended(device: torch.device) -> bool:
    """Wait for the work launched so far. Returns False if it does not end within CHECK_S
    seconds.
    """
    if not accelerated(device):
        return True
    event = runtime(device).Event()
    event.record(runtime(device).current_stream(device))
    return wait_for(event.query, CHECK_S)
