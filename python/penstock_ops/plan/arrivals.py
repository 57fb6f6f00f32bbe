"""Arrival times and lengths of requests: random, or from a recorded trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from penstock.core import PenstockError
from penstock_lab.bench import traces
from penstock_ops.plan.virtual import Arrival


def arrivals_of(workload: Mapping[str, Any]) -> list[Arrival]:
    """The arrivals of the workload in a plan file."""
    if "trace" in workload:
        return read_trace(Path(workload["trace"]), workload["requests"])
    names = ("rate", "requests", "isl", "osl", "seed")
    return poisson(*(workload[name] for name in names))


def poisson(rate: float, count: int, isl: int, osl: int, seed: int = 0) -> list[Arrival]:
    """`count` requests of `isl` input and `osl` output tokens with Poisson arrivals, `rate` per
    second. A seed gives the same pattern at any rate.
    """
    draw, now, found = Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(1.0) / rate
        found.append(Arrival(now, isl, osl))
    return found


def read_trace(path: Path, most: int) -> list[Arrival]:
    """The first `most` requests of a trace. Raises PenstockError if the file is invalid or has
    fewer than two.
    """
    try:
        rows = traces.read(path).arrivals[:most]
    except OSError as error:
        raise PenstockError(f"{path}: {error.strerror or error}") from error
    if len(rows) < 2:
        raise PenstockError(f"{path}: fewer than two arrivals")
    return [
        Arrival(
            row.at,
            max(row.input_tokens, 1),
            max(row.output_tokens, 1),
            row.hash_ids,
            row.block_tokens,
        )
        for row in rows
    ]
