"""What joins the ranks: a group for each stage, a pipe between neighbours.

Shared memory and ports are made where they are used, by the first rank that uses them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core import Ranks
from penstock.executor.ray.placement import Seat
from penstock.executor.wiring import PATIENCE, PIPE_SLOTS

CARRIED = {"kind": "carried"}


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to make: by `maker`, for `users` (rank and the name it has in the rank's wiring)."""

    maker: int
    wanted: tuple[Any, ...]
    users: tuple[tuple[int, str], ...]


def parts(ranks: Ranks, seats: Sequence[Seat], carried: bool) -> list[Part]:
    """What has to be made. Pipes need nothing when the caller carries (`carried`)."""
    found = []
    for stage in range(ranks.pp):
        members = range(stage * ranks.tp, (stage + 1) * ranks.tp)
        if ranks.tp > 1:
            wanted = ("group", ranks.tp, ranks.part_numbers)
            found.append(Part(members[0], wanted, tuple((rank, "group") for rank in members)))
        if stage + 1 < ranks.pp and not carried:
            found += [_pipe(ranks, seats, rank, rank + ranks.tp) for rank in members]
    return found


def _pipe(ranks: Ranks, seats: Sequence[Seat], before: int, after: int) -> Part:
    here, there = seats[before].node, seats[after].node
    wanted = ("ring", PIPE_SLOTS, ranks.rows_bytes) if here.id == there.id else ("port", here.address)
    return Part(before, wanted, ((before, "after"), (after, "before")))


def wire(
    ranks: Ranks, parts: Sequence[Part], made: Sequence[dict[str, Any]], key: bytes, carried: bool
) -> list[str]:
    """JSON of `penstock_decoder::Wiring` for each rank. `made` is what came of each part."""
    wirings = [_empty(ranks, rank // ranks.tp, carried) for rank in range(ranks.size)]
    for part, thing in zip(parts, made, strict=True):
        if thing.get("kind") == "stream":
            thing = {**thing, "key": key.hex(), "capacity": ranks.rows_bytes}
        for rank, name in part.users:
            wirings[rank][name] = {**thing, "rank": rank % ranks.tp} if name == "group" else thing
    return [json.dumps(wiring) for wiring in wirings]


def _empty(ranks: Ranks, stage: int, carried: bool) -> dict[str, Any]:
    return {
        "group": None,
        "before": CARRIED if carried and stage else None,
        "after": CARRIED if carried and stage + 1 < ranks.pp else None,
        "patience_s": PATIENCE,
    }
