"""Calls of the kernels at the beginning and the end of a step: looking up rows, and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.cases import Case, Maker
from penstock.backends.torch.kernels.rows import find_rows_reference, find_rows_triton
from penstock.backends.torch.kernels.sample import sample_reference, sample_triton

RULES = ((0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.2), (9, 0.8, 0.05), (1, 1.0, 0.0))


def draws(
    make: Maker,
    rows: int,
    vocabulary: int,
    *,
    rules: Sequence[Any] = RULES,
    softcap: float = 0.0,
    spread: float = 2.0,
) -> Case:
    """Sampling of rows with all `rules` (top-k, top-p, min-p) in turn; every seventh row is greedy.
    Some logits are equal, and some are minus infinity or NaN.
    """
    logits = ((make.wide(rows, vocabulary) * 4 * spread).round() / 4).to(make.dtype)
    logits[:, 3::11] = -math.inf
    logits[::3, 5::17] = math.nan
    each = [rules[i % len(rules)] for i in range(rows)]
    heat = [0.0 if i % 7 == 6 else 0.5 + i % 3 for i in range(rows)]
    return draws_of(make, logits, each, heat, softcap=softcap)


def draws_of(
    make: Maker,
    logits: Tensor,
    rules: Sequence[Any],
    temperatures: Sequence[float],
    *,
    softcap: float = 0.0,
) -> Case:
    """Sampling of given logits, each row with its rule and temperature."""
    rows = len(logits)

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=make.device)

    seeds = make.integers(-(2**31), 2**31 - 1, rows).long() * 0x12345677
    by_row = (
        *(column(temperatures), make.index([k for k, _, _ in rules])),
        *(column([p for _, p, _ in rules]), column([m for _, _, m in rules])),
        *(seeds, make.integers(0, 3, rows)),
    )
    slots = torch.randperm(rows, generator=make.generator, device=make.device)
    parameters = tuple(torch.empty_like(own).index_copy_(0, slots, own) for own in by_row)
    states = make.numbers(rows, 40)
    states[2::5, 7] = math.inf
    states[4::9, 39] = math.nan
    last = torch.zeros(rows, dtype=torch.int32, device=make.device)
    at = (slots.int(), make.integers(0, 100000, rows))
    args = (logits, parameters, *at, softcap, states, -1, last)
    # A GPU's exponential rounds differently from torch's, so a random number at the boundary of two
    # tokens may select either: about one row in a hundred, with 10,000 likely tokens.
    may = 0.0 if make.device == "cpu" else 0.03
    pair = (sample_triton, sample_reference)
    return Case("sampling", *pair, args, written=(7,), bytes=logits.nbytes, may_differ=may)


def rows(make: Maker, counts: Sequence[int], groups: int, size: int) -> Case:
    """Lookup of the rows of sequences that have these numbers of rows; the first sequence is
    padding. Some tokens are those that their sequence sampled last.
    """
    sequences = [s for s, count in enumerate(counts) for _ in range(count)]
    starts = [37 * s for s in range(len(counts))]
    positions = [start + i for start, n in zip(starts, counts, strict=True) for i in range(n)]
    lengths = [0, *(start + n for start, n in zip(starts[1:], counts[1:], strict=True))]
    blocks = max(positions) // size + 2
    args = (
        *(make.integers(-1, 9, len(sequences)), make.index(positions), make.index(sequences)),
        make.integers(0, 9, len(counts)),
        *(make.index(lengths), make.integers(-3, 9, 9)),
        *(make.integers(0, 99, len(counts), groups, blocks + 3)[:, :, :blocks], size),
    )
    return Case("rows", find_rows_triton, find_rows_reference, args, bytes=20 * len(sequences))
