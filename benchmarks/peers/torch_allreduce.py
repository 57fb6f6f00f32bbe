"""All-reduce of torch.distributed's gloo, or of vLLM's CPU extension, over processes of this host.

    PEER_PYTHON benchmarks/peers/torch_allreduce.py gloo|vllm RANKS NUMBERS:TIMES...

Run by `benchmarks/allreduce.py` with the interpreter of an environment that has torch (and vLLM).
Prints one line of JSON for each size, like crates/compute/decoder/examples/allreduce.rs, with the
same values in the sums.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM = 20
Sum = Callable[[torch.Tensor], None]


def gloo(rank: int, ranks: int) -> Sum:
    return dist.all_reduce


def vllm(rank: int, ranks: int) -> Sum:
    """vLLM's tensor parallelism on CPUs: sums in shared memory."""
    import vllm._C  # noqa: F401 - registers the operators

    group = os.environ["GROUP_NAME"]
    handle = torch.ops._C.init_shm_manager(group, ranks, rank, torch.get_num_threads())
    dist.barrier()
    torch.ops._C.join_shm_manager(handle, group)
    dist.barrier()
    return lambda tensor: torch.ops._C.shm_allreduce(handle, tensor)


def measure(
    rank: int, kind: str, ranks: int, sizes: Sequence[tuple[int, int]], meeting: str
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    total = {"gloo": gloo, "vllm": vllm}[kind](rank, ranks)
    for numbers, times in sizes:
        check(total, rank, ranks, numbers)
        us = laps(total, torch.zeros(numbers), times)
        if rank == 0:
            print(json.dumps({"numbers": numbers, "us": us}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def check(total: Sum, rank: int, ranks: int, numbers: int) -> None:
    x = (torch.arange(numbers) % 7).float()
    expected = x * (ranks * (ranks + 1) // 2)
    x *= rank + 1
    total(x)
    if not torch.equal(x, expected):
        raise RuntimeError(f"{numbers} numbers are summed wrongly")


def laps(total: Sum, x: torch.Tensor, times: int) -> list[float]:
    """Microseconds of each sum."""
    found = []
    for lap in range(WARM + times):
        begin = time.perf_counter_ns()
        total(x)
        if lap >= WARM:
            found.append((time.perf_counter_ns() - begin) / 1000)
    return found


def main() -> None:
    kind, ranks, *texts = sys.argv[1:]
    sizes = [
        (int(numbers), int(times)) for numbers, _, times in (text.partition(":") for text in texts)
    ]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["GROUP_NAME"] = f"penstock-allreduce-{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        meeting = str(Path(directory) / "meeting")
        mp.spawn(measure, (kind, int(ranks), sizes, meeting), nprocs=int(ranks))


if __name__ == "__main__":
    main()
