"""Errors of the kernels on odd shapes, computed by Triton's interpreter: a program of its own,
because Triton decides at its import what a kernel is.

Usage: TRITON_INTERPRET=1 python interpreted.py f32|f16 quick|full. Prints JSON: [name, error].
"""

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.gpu import bandwidth, cases, routing_cases, skinny_cases, step_cases
from benchmarks.gpu.cases import Case, Maker
from penstock.backends.torch.kernels import Activation, Rule, Scoring
from penstock.backends.torch.kernels.skinny import TILINGS

# One token, one block, the borders of blocks of 16 and of tiles of 64, several tiles.
LENGTHS = (1, 16, 17, 63, 64, 65, 130)
ROWS = ((0, 1), (0, 17), (60, 3), (15, 20))
LONG = ((400, 140), (190, 3))
# What a quick run takes of each list of sizes: every size in one of both forms.
QUICK = {"f32": slice(0, None, 2), "f16": slice(1, None, 2)}


def elementwise(make: Maker) -> Iterator[Case]:
    yield from cases.norms(make, 3, 48)
    yield from cases.norms(make, 1, 1000)
    for rule in ("silu", "gelu_tanh", "gelu"):
        yield cases.activation(make, 3, 1025, Activation(rule))
    yield cases.activation(make, 2, 7, Activation("clamped", 2.0, 1.7, 1.0))
    yield cases.heads(make, 7, 4, 2, 24, rotary=24, bias=True, factors=True)
    yield cases.heads(make, 3, 3, 1, 24, norm="after", rotary=16, dv=16)
    yield cases.heads(make, 1, 1, 1, 8, norm="", bias=True)
    yield cases.heads(make, 6, 2, 2, 24, norm="", rotary=24, factors=True, dv=40)
    yield cases.rotated(make, 5, 3, 24, 16)
    yield cases.latents(make, 9, 40, 16)


def attention(make: Maker, groups: Sequence[int], part: slice) -> Iterator[Case]:
    for group in groups:
        rules = (
            Scoring(0.2),
            Scoring(0.2, window=5),
            Scoring(0.2, chunk=24),
            Scoring(0.2, softcap=2.0, sinks=make.wide(2 * group)),
        )
        for rule, splits in list(itertools.product(rules, (1, 3)))[part]:
            yield cases.decodes(make, LENGTHS, 2 * group, 2, 24, rule, splits=splits)
        for rule in rules:
            yield cases.prefills(make, ROWS, 2 * group, 2, 24, rule, padding=2)
    yield cases.decodes(make, LENGTHS, 4, 2, 32, Scoring(0.2), tokens=64, splits=2, dv=48)
    yield cases.decodes(make, [0, 5], 2, 2, 16, Scoring(0.2), splits=2)
    yield cases.prefills(make, ROWS, 4, 2, 24, Scoring(0.2), tokens=64, dv=40)
    # Tiles with a mask for a window's or a chunk's border before and behind tiles without one.
    for tokens, rule in ((16, {"window": 300}), (128, {"chunk": 320}))[part]:
        yield cases.prefills(make, LONG, 2, 2, 16, Scoring(0.2, **rule), tokens=tokens)
    yield cases.latent_rows(make, ROWS[:3], 5, 32, 16, splits=3)
    yield cases.latent_rows(make, ROWS[::2], 18, 40, 8, splits=1)
    counts = (0, 1, 3, len(LENGTHS))
    for count, rule in list(itertools.product(counts, ({}, {"window": 5})))[part]:
        counted = Scoring(0.2, sinks=make.wide(4), **rule)
        case = cases.decodes(make, LENGTHS, 4, 2, 24, counted, count=count)
        case.launch = partial(with_short_splits, case.launch)
        yield case
    for left_out in (0, 2, len(ROWS))[part]:
        yield cases.prefills(make, ROWS, 4, 2, 24, Scoring(0.2), padding=3, left_out=left_out)
    for sinks in (False, True):
        yield cases.merges(make, 2, 3, 5, 24, sinks=sinks)


def routing(make: Maker) -> Iterator[Case]:
    yield routing_cases.routes(make, 5, 40, 3, Rule("softmax", epsilon=0.0))
    yield routing_cases.routes(make, 3, 16, 4, Rule("softmax", after_choice=True))
    yield routing_cases.routes(make, 3, 16, 1, Rule("sigmoid", after_choice=True, scale=2.0))
    grouped = Rule("sigmoid", groups=4, keep=2, best=2, epsilon=1e-20, scale=2.5)
    yield routing_cases.routes(make, 4, 20, 3, grouped, corrected=True)
    yield routing_cases.routes(make, 4, 20, 3, Rule("softmax", groups=5, keep=3, scale=16.0))
    yield routing_cases.routes(make, 5, 40, 3, Rule("softmax"), bias=True, own=range(7, 29))
    yield routing_cases.gathers(make, 5, 3, 40)
    yield routing_cases.gathers(make, 3, 2, 1100, factors=True)
    yield routing_cases.combines(make, 5, 3, 40)
    yield routing_cases.combines(make, 3, 2, 1100, bias=True, gate=True)
    yield routing_cases.combines(make, 5, 3, 40, sorted_=False, gate=False)
    for rows, k, experts in ((1, 1, 3), (40, 3, 70), (129, 1, 5)):
        yield routing_cases.sorts(make, rows, k, experts)


def products(make: Maker, part: slice) -> Iterator[Case]:
    clamped = Activation("clamped", 2.0, 1.7, 1.0)
    for form in ("plain", "fp8_block", "mxfp4"):
        yield cases.mixtures(make, form, 1, 2, 5, 64, 32, bias=True)
        yield cases.mixtures(make, form, 19, 3, 4, 192, 96, clamped, bias=True, on_input=True)
        yield cases.mixtures(make, form, 19, 3, 4, 64, 32, bias=True, elsewhere=True)
        yield cases.dense(make, form, 5, 70, 160, bias=False)
    for form in ("fp8_block", "mxfp4"):
        yield cases.widenings(make, form, 3, 140, 160)
        yield cases.dense(make, form, 5, 70, 160, bias=True, widened=True)
        # As many experts at once as there are, and pieces of which the last is smaller.
        for at_once in (5, 2)[part]:
            yield cases.mixtures(make, form, 19, 3, 5, 160, 96, bias=True, widened=at_once)
        yield cases.mixtures(
            make,
            form,
            19,
            3,
            4,
            64,
            32,
            clamped,
            bias=True,
            on_input=True,
            elsewhere=True,
            widened=3,
        )
    yield cases.mixtures(make, "fp8_block", 70, 2, 2, 160, 136)
    yield cases.mixtures(make, "mxfp4", 70, 2, 2, 160, 96)


def few(make: Maker) -> Iterator[Case]:
    """A part of a tile, several steps, columns that programs share, and a gate that ends early."""
    clamped = Activation("clamped", 2.0, 1.7, 1.0)
    for tiling in TILINGS:
        shared = {"tiling": tiling}
        yield skinny_cases.products(make, 1, 70, 528, bias=True, **shared)
        yield skinny_cases.products(make, 8, 5, 16, **shared)
        yield skinny_cases.products(make, 9, 33, 2064, **shared)
        yield skinny_cases.products(make, 3, 34, 1056, activation=Activation("silu"), **shared)
        yield skinny_cases.products(make, 16, 14, 80, bias=True, activation=clamped, **shared)
    yield from skinny_cases.routers(make, 1, 1040)
    yield from skinny_cases.routers(make, 3, 48)
    # More columns than a tile has.
    for form, hidden in (("plain", 288), ("fp8_block", 576), ("mxfp4", 544)):
        on_input = {"bias": True, "on_input": True}
        yield skinny_cases.mixtures(make, form, 1, 1, 2, hidden, 32, clamped, **on_input)
        elsewhere = {"bias": True, "elsewhere": True, "gate": True}
        yield skinny_cases.mixtures(make, form, 2, 3, 4, 64, 96, **elsewhere)
    yield skinny_cases.mixtures(make, "plain", 2, 1, 3, 32, 272, gate=False)


def sampling(make: Maker, part: slice) -> Iterator[Case]:
    yield step_cases.rows(make, [3, 1, 5, 200], 3, 16)
    for rows, width, softcap in ((14, 50, 0.0), (7, 700, 9.0))[part]:
        yield step_cases.draws(make, rows, width, softcap=softcap)
    # Peaked and flat, in several chunks: listed as they are, narrowed down first, and searched as a
    # whole where the list is too short.
    sizes = [(0.3, 256, 60, 400), (2.0, 512, 300, 800), (9.0, 128, 0, 10)]
    for spread, chunk, few, room in sizes[part]:
        case = step_cases.draws(make, 7, 900, spread=spread)
        yield replace(case, launch=partial(with_sizes, chunk, few, room, case.launch))
    yield from hostile(make, part)


def with_short_splits(launch: Callable[..., Any], *args: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[launch.__module__], "SPLIT_TOKENS", 16)
        return launch(*args, **options)


def hostile(make: Maker, part: slice) -> Iterator[Case]:
    """Rows of few values, masks, and numbers that are next to one another."""
    sizes = [(256, 100, 400), (128, 20, 160), (4096, 9, 9000)]
    for seed, (chunk, few, room) in list(enumerate(sizes))[part]:
        made = random.Random(seed)
        count, width = 7, made.choice([300, 700, 1111])
        logits = torch.stack([hostile_row(make, i + 7 * seed, width) for i in range(count)])
        rules = [
            (
                made.choice([0, 0, 0, 2, 100, width, 2 * width]),
                made.choice([1.0, 0.95, 0.95, 0.5, 1e-6, 0.0, 1 - 2**-24]),
                made.choice([0.0, 0.0, 0.02, 0.9, 1.0]),
            )
            for _ in range(count)
        ]
        heats = [made.choice([0.7, 1.0, 1.0, 5.0, 1e-3]) for _ in range(count)]
        case = step_cases.draws_of(make, logits.to(make.dtype), rules, heats)
        yield replace(case, launch=partial(with_sizes, chunk, few, room, case.launch))


def hostile_row(make: Maker, kind: int, width: int) -> torch.Tensor:
    row = make.wide(width)
    kinds = (
        lambda: torch.zeros(width),
        lambda: (row > 0.3).float() * 1.5 - 3,
        lambda: row.masked_fill(row < 2, -math.inf),
        lambda: row.masked_fill(torch.arange(width) != width // 2, -math.inf),
        lambda: torch.full((width,), math.nan),
        lambda: 3.0 + row * 1e-3,
        lambda: row * 1e-30,
        lambda: row.round() * 4,
        lambda: torch.where(row > 1.0, row * 30, -0.0 * row),
        lambda: torch.full((width,), -math.inf),
        lambda: -60000.0 + 100 * row.round(),
    )
    return kinds[kind % len(kinds)]()


def with_sizes(chunk: int, few: int, room: int, launch: Callable[..., Any], *args: Any) -> Any:
    module = sys.modules[launch.__module__]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_CHUNK", chunk), ("_FEW", few), ("_ROOM", room)):
            patch.setattr(module, name, value)
        return launch(*args)


def checksums(make: Maker) -> Iterator[Case]:
    """Less than a segment of 4096 words, whole ones, and several memories."""
    for counts in ((1,), (0,), (4095,), (4096,), (8193,), (300, 1, 0, 4097, 20000)):
        yield cases.checksums(make, *counts)


def reads(make: Maker) -> Iterator[Case]:
    """Fewer blocks than programs, and more."""
    for words in (512, 128 * 7, 128 * 40):
        args = (make.integers(-9, 9, words).long(), 128, 2)
        yield Case("reads", bandwidth.sum_triton, bandwidth.sum_reference, args)


def main(form: str, size: str) -> None:
    dtype = {"f32": torch.float32, "f16": torch.float16}[form]
    make, part = Maker(dtype), slice(None) if size == "full" else QUICK[form]
    every = itertools.chain(
        elementwise(make),
        routing(make),
        products(make, part),
        few(make),
        sampling(make, part),
        checksums(make),
        reads(make),
        attention(make, (1, 3, 7, 8) if size == "full" else (3, 8)[part], part),
    )
    print(json.dumps([[case.name, cases.error(case, dtype)] for case in every]))


if __name__ == "__main__":
    main(*sys.argv[1:])
