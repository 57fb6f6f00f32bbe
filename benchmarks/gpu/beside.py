"""Penstock's attention compared with FlashInfer's, if installed, to choose the default.

FlashInfer's first kernel is compiled here by nvcc, which takes most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch

from benchmarks.gpu import cases
from benchmarks.gpu.cases import Case, Maker
from benchmarks.gpu.items import ABSENT, Results
from benchmarks.gpu.kernels import lengths, made_case
from benchmarks.gpu.timing import Timing
from penstock.backends.torch.kernels import Scoring
from penstock.backends.torch.step.flash import FlashInfer, Kind

COMPILE_S = 25.0
"""Seconds of the run that must be left to start an item, because a kernel compiles in tens of
seconds.
"""
Rows = list[tuple[int, int]]
"""(first position, number of rows) for each sequence in a step."""


def steps(make: Maker) -> Iterator[tuple[str, Rows, Callable[[], Case]]]:
    """Attention steps in the shapes of Qwen3-8B: name, rows, and a function that makes the call."""
    scoring, sizes = Scoring(128**-0.5), (32, 8, 128)
    for count in (1, 16, 256):
        long = lengths(count, 100, 2048) if count > 1 else [32768]
        yield (
            f"decode {count}",
            [(length - 1, 1) for length in long],
            lambda long=long: cases.decodes(make, long, *sizes, scoring, tokens=64),
        )
    rows: Rows
    for rows in ([(0, 1024)] * 8, [(7168, 1024)]):
        yield (
            f"prefill {len(rows)}x{rows[0][1]} at {rows[0][0]}",
            rows,
            lambda rows=rows: cases.prefills(make, rows, *sizes, scoring, tokens=64),
        )


def measure(results: Results, timing: Timing) -> None:
    if timing.dry or find_spec("flashinfer") is None:
        results.row(ABSENT, item="FlashInfer", reason="it is not installed, or the run is dry")
        return
    make = Maker(timing.dtype, timing.device)
    for at, (name, rows, build) in enumerate(steps(make)):
        least = 2.0 if at else COMPILE_S
        results.item(name, lambda n=name, r=rows, b=build: _both(results, timing, n, r, b), least)


def _both(
    results: Results, timing: Timing, name: str, rows: Rows, build: Callable[[], Case]
) -> None:
    """Record the seconds of both kernels in a CUDA graph, of FlashInfer's planning on the host, and
    whether the results agree.
    """
    case = made_case(build, timing)
    q, k, v, table, *_, scoring = case.args
    kind = Kind(0, q.shape[1], k.shape[1], q.shape[2], scoring.scale, 0, 0.0)
    flash = FlashInfer((kind,), k.shape[2], q.dtype, q.device)
    starts, counts = [start for start, _ in rows], [count for _, count in rows]
    planned = flash.plan(starts, counts, [table])

    def theirs() -> torch.Tensor:
        return planned.attend_kind(kind, q, k, v)

    def ours() -> torch.Tensor:
        made: torch.Tensor = case.launch(*case.args, **case.options, **case.launch_options)
        return made

    apart = float((theirs().float() - ours().float()).abs().max())
    limit = cases.TOLERANCE[timing.dtype] * float(ours().float().abs().max())
    if not apart < limit:
        results.fail(name, f"the two are {apart:.1e} apart, not under {limit:.1e}")
    began = time.perf_counter()
    flash.plan(starts, counts, [table])
    host = time.perf_counter() - began
    own, other = timing.of(ours), timing.of(theirs)
    results.row(
        "attention",
        case=name,
        us=own * 1e6,
        flashinfer_us=other * 1e6,
        plan_us=host * 1e6,
        faster=own / other,
    )
