"""Measures a model that is sharded over several GPUs. All ranks run the same items; the first rank
writes the results.
"""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu import models, serving
from benchmarks.gpu.driver import Rank
from benchmarks.gpu.items import ABSENT, Results
from benchmarks.gpu.machine import Ceilings
from benchmarks.gpu.native import stand_in
from benchmarks.gpu.server import free_port
from benchmarks.gpu.shapes import shape_of, write_checkpoint
from benchmarks.gpu.sizes import DRY, FULL
from benchmarks.gpu.timing import Timing
from penstock.backends.torch.ranks.symmetric import SymmetricGroup
from penstock.backends.torch.step.captures import capture_graph

NAME = "Qwen3-14B"
MOST = 8
"""Maximum number of ranks, which is the model's number of KV heads."""


def measure(results: Results, timing: Timing, ceilings: Ceilings) -> None:
    """Run the first rank: it starts the other ranks, and waits for them at the end."""
    there = 2 if timing.dry else torch.cuda.device_count()
    if there < 2:
        results.row(ABSENT, item="ranks", reason=f"several GPUs are needed; there is {there}")
        return
    ranks = 1 << (min(there, MOST).bit_length() - 1)
    results.note("ranks", ranks)
    ceilings = Ceilings(ceilings.bandwidth * ranks, ceilings.rate * ranks)
    with tempfile.TemporaryDirectory() as temporary:
        shape = shape_of(NAME, timing.dry)
        write_checkpoint(Path(temporary), shape, (DRY if timing.dry else FULL).longest)
        first = Rank(0, ranks, f"127.0.0.1:{free_port()}", secrets.token_hex(32))
        others = [_other(first, at, Path(temporary), timing.dry) for at in range(1, ranks)]
        try:
            run(results, timing, ceilings, first, Path(temporary))
            states = [other.wait(30) for other in others]
        finally:
            for other in others:
                other.kill()
    if any(states):
        raise RuntimeError(f"ranks 1 to {ranks - 1} ended with {states}")


def _other(first: Rank, at: int, directory: Path, dry: bool) -> subprocess.Popen[bytes]:
    words = [str(at), str(first.ranks), first.address, first.key, str(directory)]
    command = [sys.executable, "-m", "benchmarks.gpu.several", *words]
    return subprocess.Popen([*command, "--dry"] if dry else command)


def run(results: Results, timing: Timing, ceilings: Ceilings, rank: Rank, directory: Path) -> None:
    """Run all items on a rank. Every rank must run every item, because ranks with different items
    would wait for each other forever.
    """
    logging.basicConfig(level=logging.INFO)
    stand_in()
    if not timing.dry:
        torch.cuda.set_device(rank.rank)
    model = models.start(results, timing, NAME, ceilings, directory, rank)
    _sums(results, timing, model)
    models.graphs(results, model)
    models.decode_steps(results, model)
    models.prefill_steps(results, model)
    models.single(results, model)
    serving.offline(results, model)


def _sums(results: Results, timing: Timing, model: models.Model) -> None:
    """Measure all-reduces over the ranks, as after each attention and feed-forward layer: in the
    default way, and with NCCL if the default for small sums uses symmetric memory.
    """
    group = model.driver.backend._ranks.group
    ways = {"as served": group.sum}
    if isinstance(group, SymmetricGroup):
        ways["NCCL"] = group.inner.sum
    elif not timing.dry:
        results.row(ABSENT, item="symmetric memory", reason="the log of this part says why")
    for rows in (1, 4) if timing.dry else (1, 4, 16, 32, 64, 256, 8192):
        # Zeros, because they stay zero if they are summed again and again.
        x = torch.zeros(rows, model.shape.hidden, dtype=timing.dtype, device=timing.device)
        for way, add in ways.items():
            seconds = _of_sums(timing, partial(add, x))
            rate = x.nbytes / seconds / 1e9
            results.row("sums", rows=rows, by=way, us=seconds * 1e6, GB_per_s=rate)


def _of_sums(timing: Timing, add: Callable[[], torch.Tensor], calls: int = 20) -> float:
    """Seconds for each of `calls` sums in a CUDA graph, as in decode steps. All ranks start at the
    same time, because the first sum waits for all of them.
    """

    def work() -> torch.Tensor:
        for _ in range(calls):
            made = add()
        return made

    if timing.dry:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) / calls
    with torch.cuda.stream(torch.cuda.Stream()):
        replay, best = capture_graph(work, torch.device("cuda")), float("inf")
        for _ in range(5):
            add()
            timing.wait()
            began = time.perf_counter()
            replay()
            timing.wait()
            best = min(best, time.perf_counter() - began)
    return best / calls


def main() -> None:
    """Entry point of the ranks other than the first. Arguments: rank, number of ranks, address,
    key, checkpoint.
    """
    own, ranks, address, key, directory, *dry = sys.argv[1:]
    rank = Rank(int(own), int(ranks), address, key)
    results = Results(None, float("inf"))
    run(results, Timing(bool(dry)), Ceilings(), rank, Path(directory))


if __name__ == "__main__":
    main()
