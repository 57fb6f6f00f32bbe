"""Measures attention and experts with other tile sizes than the default ones. Only a GPU run can
rank them: machine code shows only how many tiles are prefetched and how many programs fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from benchmarks.gpu import cases
from benchmarks.gpu.cases import Case, Maker
from benchmarks.gpu.items import Results
from benchmarks.gpu.kernels import lengths, made_case
from benchmarks.gpu.shares import Share
from benchmarks.gpu.timing import Timing
from penstock.backends.torch.kernels import Scoring, decode, grouped, latent, prefill

Sizes = dict[str, int]
SERVED: Sizes = {}
DECODE = (
    SERVED,
    {"num_stages": 3},
    {"num_stages": 7},
    {"BLOCK_N": 32, "num_stages": 7},
    {"num_warps": 2},
)
PREFILL = (
    SERVED,
    {"num_stages": 3},
    {"BLOCK_N": 128},
    {"BLOCK_N": 32},
    {"BLOCK_M": 64, "num_warps": 4},
    {"BLOCK_M": 64, "num_warps": 4, "num_stages": 3},
)
LATENT = (
    SERVED,
    {"num_stages": 2},
    {"APART": False},
    {"BLOCK_N": 64, "num_stages": 2},
    {"BLOCK_H": 32, "num_warps": 8},
    {"BLOCK_N": 16},
)
PLAIN = (
    SERVED,
    {"BLOCK_N": 256},
    {"BLOCK_N": 256, "num_stages": 4},
    {"BLOCK_M": 64, "BLOCK_N": 256},
)
MXFP4 = (
    SERVED,
    {"BLOCK_K": 128},
    {"BLOCK_N": 128},
    {"BLOCK_N": 64, "num_warps": 4},
    {"num_stages": 4},
)
FP8 = (SERVED, {"num_stages": 2}, {"BLOCK_N": 128}, {"num_stages": 4})
TRIED: dict[str, tuple[ModuleType, str, tuple[Sizes, ...]]] = {
    "decode": (decode, "decode_sizes", DECODE),
    "prefill": (prefill, "prefill_sizes", PREFILL),
    "latent": (latent, "latent_sizes", LATENT),
    "plain": (grouped, "grouped_sizes", PLAIN),
    "mxfp4": (grouped, "grouped_sizes", MXFP4),
    "fp8_block": (grouped, "grouped_sizes", FP8),
}
Named = tuple[str, Callable[[], Case]]


def shapes(make: Maker, dry: bool) -> Iterator[Named]:
    """Kernel calls in the shapes of Qwen3-8B, 30B-A3B, and DeepSeek-V3 as one of eight ranks and
    with all heads. Each name begins with the name of the kernel, or with the format of the experts'
    matrices.
    """
    scoring = Scoring(128**-0.5)
    if dry:
        yield "decode", lambda: cases.decodes(make, [1, 17], 4, 2, 16, scoring)
        return
    long = lengths(256, 100, 2048)
    for tokens in (32, 64):
        yield (
            f"decode 256, blocks of {tokens}",
            lambda tokens=tokens: cases.decodes(make, long, 32, 8, 128, scoring, tokens=tokens),
        )
    yield (
        "decode 1x32768, 32/4",
        lambda: cases.decodes(make, [32768], 32, 4, 128, scoring, tokens=32),
    )
    for rows in ([(0, 8192)], [(0, 1024)] * 8):
        yield (
            f"prefill {len(rows)}x{rows[0][1]}",
            lambda rows=rows: cases.prefills(make, rows, 32, 8, 128, scoring, tokens=32),
        )
    for heads in (16, 128):
        yield (
            f"latent 64x4096, {heads} heads",
            lambda heads=heads: cases.latent_rows(
                make, [(4095, 1)] * 64, heads, 512, 64, tokens=32
            ),
        )

    for form, rows in (("plain", 8192), ("fp8_block", 64), ("fp8_block", 8192)):
        yield f"{form} experts, {rows}", lambda form=form, rows=rows: _experts(make, form, rows)
    for rows in (16, 256, 8192):
        yield f"mxfp4 experts, {rows}", lambda rows=rows: _experts(make, "mxfp4", rows)


def _experts(make: Maker, form: str, rows: int) -> Case:
    return cases.mixtures(make, form, rows, 8, 128, 2048, 768)


def tries(make: Maker, dry: bool) -> Iterator[tuple[str, Sizes, Callable[[], Case]]]:
    for name, build in shapes(make, dry):
        for sizes in TRIED[name.split()[0]][2]:
            yield name, sizes, build


def call(name: str, sizes: Sizes, case: Case) -> Any:
    """Launch the case with `sizes` in place of some of the kernel's default sizes."""
    module, function, _ = TRIED[name.split()[0]]
    served = getattr(module, function)
    with mock.patch.object(module, function, lambda *shape: {**served(*shape), **sizes}):
        return case.launch(*case.args, **case.options, **case.launch_options)


def seconds(timing: Timing, name: str, sizes: Sizes, case: Case) -> float | None:
    """Seconds of a launch with these sizes; None if the tile does not fit this GPU."""
    try:
        return timing.of(lambda: call(name, sizes, case))
    except Exception as error:
        if type(error).__name__ != "OutOfResources":
            raise
        return None


def compile_all(results: Results, timing: Timing, share: Share) -> None:
    """Launch each variant once, so that Triton compiles it."""
    make = Maker(timing.dtype, timing.device)
    for name, sizes, build in share.of(tries(make, timing.dry)):
        results.item(
            f"{name} {sizes}, compiled",
            lambda n=name, s=sizes, b=build: seconds(timing, n, s, made_case(b, timing)),
        )


def measure(results: Results, timing: Timing) -> None:
    make = Maker(timing.dtype, timing.device)
    for name, build in shapes(make, timing.dry):
        results.item(name, lambda n=name, b=build: _compare(results, timing, n, b))


def _compare(results: Results, timing: Timing, name: str, build: Callable[[], Case]) -> None:
    case = made_case(build, timing)
    served = seconds(timing, name, SERVED, case)
    for sizes in TRIED[name.split()[0]][2]:
        found = seconds(timing, name, sizes, case) if sizes else served
        results.row(
            "tiles",
            case=name,
            sizes=", ".join(f"{key} {value}" for key, value in sizes.items()) or "as served",
            us=None if found is None else found * 1e6,
            faster=None if found is None or served is None else served / found,
        )
