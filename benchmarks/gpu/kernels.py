"""Measures Penstock's kernels on a GPU: correctness in bf16, equality in a CUDA graph, and speed
relative to the machine's ceilings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu import cases, routing_cases, skinny_cases, step_cases
from benchmarks.gpu.cases import Case, Maker
from benchmarks.gpu.items import ABSENT, Results
from benchmarks.gpu.machine import Ceilings
from benchmarks.gpu.shares import Share
from benchmarks.gpu.timing import Timing
from penstock.backends.torch.kernels import Activation, Rule, Scoring, experts
from penstock.backends.torch.kernels.experts import experts_grouped, has_grouped
from penstock.backends.torch.load.widening import SCRATCH_BYTES

Named = tuple[str, Callable[[], Case]]
ROUTER = Rule("softmax", epsilon=0.0)
DEEPSEEK = Rule("sigmoid", groups=8, keep=4, best=2, epsilon=1e-20, scale=2.5)
# (name, sampling parameters, spread of the logits). With a small spread, more tokens are likely
# than are kept.
DRAWS = (
    ("greedy", (1, 1.0, 0.0), 2.0),
    ("all", (0, 1.0, 0.0), 2.0),
    ("top-k and top-p", (20, 0.95, 0.0), 6.0),
    ("top-p", (0, 0.95, 0.0), 6.0),
    ("top-p, flat", (0, 0.95, 0.0), 1.0),
)
GROUPED = "experts by grouped_mm"
CODES = ("fp8_block", "mxfp4")


def lengths(count: int, low: int, high: int) -> list[int]:
    made = random.Random(0)
    return [made.randint(low, high) for _ in range(count)]


def real(make: Maker) -> Iterator[Named]:
    """Kernel calls in the shapes of Qwen3 0.6B to 30B-A3B and DeepSeek-V3, as in a step of 256
    sequences.
    """
    scoring, silu = Scoring(128**-0.5), Activation("silu")
    long = lengths(256, 100, 2048)
    for rows in (256, 8192):
        yield f"norm {rows}x4096", lambda rows=rows: list(cases.norms(make, rows, 4096))[1]
    yield "activation 256x12288", lambda: cases.activation(make, 256, 12288, silu)
    yield "rotation 256, 32+8", lambda: cases.heads(make, 256, 32, 8, 128, rotary=128, tokens=64)
    for hq, hk in ((32, 8), (16, 8), (32, 4)):
        for splits in (None, 1, 2, 4):
            yield (
                f"decode 256, {hq}/{hk}, splits {splits}",
                lambda hq=hq, hk=hk, splits=splits: cases.decodes(
                    make, long, hq, hk, 128, scoring, tokens=64, splits=splits
                ),
            )
    for tokens in (16, 64):
        yield (
            f"decode 1x32768, blocks of {tokens}",
            lambda tokens=tokens: cases.decodes(make, [32768], 32, 8, 128, scoring, tokens=tokens),
        )
    for rows in ([(0, 8192)], [(0, 1024)] * 16, [(7168, 1024)]):
        yield (
            f"prefill {len(rows)}x{rows[0][1]} at {rows[0][0]}",
            lambda rows=rows: cases.prefills(make, rows, 32, 8, 128, scoring, tokens=64),
        )
    yield (
        "latent 64x4096, 128",
        lambda: cases.latent_rows(make, [(4095, 1)] * 64, 128, 512, 64, tokens=64),
    )
    yield from _products(make)
    yield from skinny_cases.real(make)
    yield "routing 256x128", lambda: routing_cases.routes(make, 256, 128, 8, ROUTER)
    yield "routing 256x256, groups", lambda: routing_cases.routes(make, 256, 256, 8, DEEPSEEK)
    yield "gathered rows 256x8", lambda: routing_cases.gathers(make, 256, 8, 2048)
    yield "sum of experts 256x8", lambda: routing_cases.combines(make, 256, 8, 2048)
    yield "order by expert 256x8", lambda: routing_cases.sorts(make, 256, 8, 128)
    yield "checksum of 8 blocks of 512 KiB", lambda: cases.checksums(make, *[65536] * 8)
    for rows in (1, 256):
        for name, rule, spread in DRAWS:
            yield (
                f"sampling {rows}x151936, {name}",
                lambda rows=rows, rule=rule, spread=spread: step_cases.draws(
                    make, rows, 151936, rules=[rule], spread=spread
                ),
            )


def _products(make: Maker) -> Iterator[Named]:
    """Products with experts in both variants (codes widened first or not), for many numbers of
    rows. `tuning.py` measures at start-up from which number of rows widening is faster.
    """
    shape = (8, 128, 2048, 768)
    at_once = SCRATCH_BYTES // (2 * 2 * 768 * 2048)
    for form in ("plain", *CODES):
        for rows in (16, 64, 256, 4096, 8192):
            yield (
                f"experts {form} {rows}",
                lambda form=form, rows=rows: cases.mixtures(make, form, rows, *shape),
            )
    for form in CODES:
        for rows in (4096, 8192):
            yield (
                f"experts {form} {rows}, widened",
                lambda form=form, rows=rows: cases.mixtures(
                    make, form, rows, *shape, widened=at_once
                ),
            )
        yield (
            f"widening {form} {at_once}x1536x2048",
            lambda form=form: cases.widenings(make, form, at_once, 1536, 2048),
        )
        for rows, widened in ((64, False), (4096, False), (4096, True), (8192, True)):
            yield (
                f"product {form} {rows}{', widened' * widened}",
                lambda form=form, rows=rows, widened=widened: cases.dense(
                    make, form, rows, 4096, 4096, bias=False, widened=widened
                ),
            )


def odd(make: Maker) -> Iterator[Named]:
    """Kernel calls in small shapes that reach every option and boundary of all kernels."""
    for rows, width in ((3, 48), (17, 5000)):
        for at in range(5):
            yield (
                f"norm {rows}x{width}, form {at}",
                lambda rows=rows, width=width, at=at: list(cases.norms(make, rows, width))[at],
            )
    yield "merge", lambda: cases.merges(make, 3, 5, 5, 128, sinks=True)
    borders, rows = (1, 16, 17, 63, 64, 65, 1300), ((0, 1), (0, 17), (60, 300), (15, 20))
    for group in (1, 3, 7, 8):
        rules = (
            Scoring(0.2),
            Scoring(0.2, window=5),
            Scoring(0.2, chunk=24),
            Scoring(0.2, softcap=2.0, sinks=make.wide(2 * group)),
        )
        for at, rule in enumerate(rules):
            yield (
                f"decode {group}, rule {at}",
                lambda group=group, rule=rule: cases.decodes(
                    make, borders, 2 * group, 2, 128, rule
                ),
            )
            yield (
                f"prefill {group}, rule {at}",
                lambda group=group, rule=rule: cases.prefills(
                    make, rows, 2 * group, 2, 128, rule, padding=2
                ),
            )
    yield from _heads(make, borders, rows)
    clamped = Activation("clamped", 2.0, 1.7, 1.0)
    yield "activation clamped", lambda: cases.activation(make, 3, 1025, clamped)
    yield "rotation", lambda: cases.heads(make, 37, 4, 2, 96, rotary=96, bias=True, factors=True)
    yield "rotation, norm after", lambda: cases.heads(make, 7, 3, 1, 64, norm="after", rotary=32)
    yield "rotation alone", lambda: cases.rotated(make, 37, 5, 64, 64)
    yield "store of latents", lambda: cases.latents(make, 37, 512, 64)
    for tokens in (16, 64):
        yield (
            f"latent, blocks of {tokens}",
            lambda tokens=tokens: cases.latent_rows(
                make, [(0, 1), (0, 17), (600, 3)], 16, 512, 64, tokens=tokens
            ),
        )
    for form in ("plain", "fp8_block", "mxfp4"):
        yield (
            f"experts {form}",
            lambda form=form: cases.mixtures(
                make, form, 67, 3, 12, 320, 192, clamped, bias=True, on_input=form == "mxfp4"
            ),
        )
        yield (
            f"experts {form}, some elsewhere",
            lambda form=form: cases.mixtures(make, form, 67, 3, 12, 320, 192, elsewhere=True),
        )
        yield f"product {form}", lambda form=form: cases.dense(make, form, 67, 70, 160, bias=False)
    for form in CODES:
        yield f"widening {form}", lambda form=form: cases.widenings(make, form, 3, 140, 160)
        yield (
            f"product {form}, widened",
            lambda form=form: cases.dense(make, form, 67, 70, 160, bias=True, widened=True),
        )
        # The experts are widened in several pieces, the last one smaller.
        yield (
            f"experts {form}, widened",
            lambda form=form: cases.mixtures(
                make, form, 67, 3, 12, 320, 192, clamped, bias=True, elsewhere=True, widened=5
            ),
        )
    for on_input in (False, True):
        for elsewhere in (False, True):
            yield (
                f"{GROUPED}, on input {on_input}, elsewhere {elsewhere}",
                lambda on_input=on_input, elsewhere=elsewhere: cases.mixtures(
                    *(make, "plain", 67, 3, 12, 320, 192, clamped),
                    bias=True,
                    on_input=on_input,
                    elsewhere=elsewhere,
                    grouped=True,
                ),
            )
    yield from _routing(make)
    yield from skinny_cases.odd(make)
    yield "sampling", lambda: step_cases.draws(make, 210, 50000)
    yield "sampling, soft cap", lambda: step_cases.draws(make, 42, 50000, softcap=9.0)
    yield "rows", lambda: step_cases.rows(make, [3, 1, 5, 200], 3, 16)
    yield "checksum", lambda: cases.checksums(make, 65536, 1, 0, 70001, 4096)


def _routing(make: Maker) -> Iterator[Named]:
    yield "routing", lambda: routing_cases.routes(make, 37, 256, 8, DEEPSEEK, corrected=True)
    yield (
        "routing, bias, own",
        lambda: routing_cases.routes(
            *(make, 37, 128, 4, Rule("softmax", after_choice=True)), bias=True, own=range(40, 80)
        ),
    )
    for factors in (False, True):
        yield (
            f"gathered rows, factors {factors}",
            lambda factors=factors: routing_cases.gathers(make, 37, 3, 1100, factors=factors),
        )
    for gate in (None, False, True):
        yield (
            f"sum of experts, gate {gate}",
            lambda gate=gate: routing_cases.combines(make, 37, 3, 1100, bias=True, gate=gate),
        )
    yield "order by expert", lambda: routing_cases.sorts(make, 129, 3, 70)


def _heads(make: Maker, borders: Sequence[int], rows: Sequence[tuple[int, int]]) -> Iterator[Named]:
    """Attention with other head sizes, at block boundaries of a whole tile, and with every tile
    size of short prompts.
    """
    scoring = Scoring(0.2)
    for d in (64, 80, 96, 256):
        yield (
            f"decode, heads of {d}",
            lambda d=d: cases.decodes(make, borders, 4, 2, d, scoring, tokens=64),
        )
        yield (
            f"prefill, heads of {d}",
            lambda d=d: cases.prefills(make, rows, 4, 2, d, scoring, tokens=64),
        )
    for count in (2, 7, 15):
        yield (
            f"prefill of {count} rows",
            lambda count=count: cases.prefills(
                make, [(0, count), (60, count)], 8, 2, 128, scoring, tokens=64
            ),
        )


def tiny(make: Maker) -> Iterator[Named]:
    """One case of each kind, for a dry run."""
    scoring, silu = Scoring(0.2), Activation("silu")
    yield "norm", lambda: list(cases.norms(make, 3, 40))[1]
    yield "activation", lambda: cases.activation(make, 3, 9, Activation("silu"))
    yield "rotation", lambda: cases.heads(make, 3, 4, 2, 16, rotary=16)
    yield "decode", lambda: cases.decodes(make, [1, 17], 4, 2, 16, scoring)
    yield "prefill", lambda: cases.prefills(make, [(3, 4)], 4, 2, 16, scoring)
    yield "latent", lambda: cases.latent_rows(make, [(3, 1)], 2, 16, 8)
    yield "experts", lambda: cases.mixtures(make, "mxfp4", 2, 2, 3, 32, 32)
    yield GROUPED, lambda: cases.mixtures(make, "plain", 9, 2, 3, 32, 32, grouped=True)
    yield "product of few rows", lambda: skinny_cases.products(make, 3, 34, 64, activation=silu)
    yield "experts of few rows", lambda: skinny_cases.mixtures(make, "plain", 2, 2, 3, 32, 32)
    yield "routing", lambda: routing_cases.routes(make, 2, 8, 2, ROUTER)
    yield "sampling", lambda: step_cases.draws(make, 7, 40)
    yield "checksum", lambda: cases.checksums(make, 3, 300)


def made_case(build: Callable[[], Case], timing: Timing) -> Case:
    case = build()
    if timing.dry and case.launch is not experts_grouped:
        case.launch, case.launch_options = case.reference, {}
    return case


def correctness(results: Results, timing: Timing, share: Share) -> None:
    make = Maker(timing.dtype, timing.device)
    for name, build in share.of((tiny if timing.dry else odd)(make)):
        if name.startswith(GROUPED) and not timing.dry and not has_grouped(torch.device("cuda", 0)):
            results.row(ABSENT, item=name, reason="compute capability 9.x or 10.x is needed")
            continue
        results.item(name, lambda name=name, build=build: _check(results, timing, name, build))


def _check(results: Results, timing: Timing, name: str, build: Callable[[], Case]) -> None:
    case = made_case(build, timing)
    limit, found = cases.TOLERANCE[timing.dtype], cases.error(case, timing.dtype)
    same = None if timing.dry else same_in_a_graph(case)
    results.row("cases", case=name, error=found, right=found < limit, graph=same)
    if not found < limit:
        results.fail(name, f"the error is {found:.1e}, not under {limit:.1e}")
    if same is False:
        results.fail(name, "a replay of its graph has other bits than a call")


def same_in_a_graph(case: Case) -> bool:
    """Whether the replay of a CUDA graph gives bitwise the same output as a direct call."""

    def call() -> list[torch.Tensor]:
        made = case.launch(*case.args, **case.options, **case.launch_options)
        outputs = [] if made is None else [made] if isinstance(made, torch.Tensor) else list(made)
        return outputs + [case.args[i] for i in case.written]

    eager = [output.clone() for output in call()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    graph.replay()
    torch.cuda.synchronize()
    return all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(eager, captured, strict=True)
    )


def compile_all(results: Results, timing: Timing, share: Share) -> None:
    """Launch each case of `speeds` once, so that Triton compiles it."""
    make = Maker(timing.dtype, timing.device)
    for name, build in share.of((tiny if timing.dry else real)(make)):
        results.item(f"{name}, compiled", lambda build=build: _launch(made_case(build, timing)))
    timing.wait()


def _launch(case: Case) -> None:
    case.launch(*case.args, **case.options, **case.launch_options)


def speeds(results: Results, timing: Timing, ceilings: Ceilings) -> None:
    make = Maker(timing.dtype, timing.device)
    for name, build in (tiny if timing.dry else real)(make):
        results.item(name, lambda n=name, b=build: _speed(results, timing, ceilings, n, b))


def _speed(
    results: Results,
    timing: Timing,
    ceilings: Ceilings,
    name: str,
    build: Callable[[], Case],
) -> None:
    case = made_case(build, timing)
    options: dict[str, Any] = {**case.options, **case.launch_options}
    seconds = timing.of(lambda: case.launch(*case.args, **options))
    if case.bytes <= timing.cached:
        ceilings = replace(ceilings, bandwidth=0.0)
    _row(results, name, case, seconds, ceilings)
    if case.name == "experts plain" and not timing.dry and has_grouped(torch.device("cuda", 0)):
        grouped = timing.of(lambda: experts(*case.args, **case.options))
        _row(results, f"{name}, grouped_mm", case, grouped, ceilings)


def _row(results: Results, name: str, case: Case, seconds: float, ceilings: Ceilings) -> None:
    """Record the speed of a case, as a fraction of the memory bandwidth and of the rate of a large
    product if these are known. If the data may stay in the GPU's cache between calls, the fraction
    of the bandwidth is left out.
    """
    bandwidth, rate = ceilings.bandwidth, ceilings.rate
    results.row(
        "speeds",
        case=name,
        us=seconds * 1e6,
        GB_per_s=case.bytes / seconds / 1e9,
        of_memory=case.bytes / seconds / bandwidth if bandwidth else None,
        TFLOP_per_s=case.operations / seconds / 1e12,
        of_gemm=case.operations / seconds / rate if rate else None,
    )
