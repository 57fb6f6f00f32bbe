"""What joins ranks: a group for each stage, a pipe between neighbours of two stages.

Shared memory and ports are made where they are used, by the first rank that uses them
(`comm.LocalParts`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core import Ranks

PATIENCE = 600.0
"""Seconds that a rank waits for another. Lost ones are noticed otherwise; this ends what nobody
noticed.
"""
PIPE_SLOTS = 2
"""A stage may be one step ahead of the next."""
CARRIED = {"kind": "carried"}


class Host(Protocol):
    """Where a rank is."""

    @property
    def id(self) -> object: ...

    @property
    def address(self) -> str:
        """Under which the others reach it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to make: by `maker`, for `users` (rank and the name it has in the rank's wiring)."""

    maker: int
    wanted: tuple[Any, ...]
    users: tuple[tuple[int, str], ...]


def parts(ranks: Ranks, hosts: Sequence[Host] | None = None, carried: bool = False) -> list[Part]:
    """What has to be made for ranks on these hosts, or on one. Pipes need nothing when the caller
    carries (`carried`)."""
    found = []
    for stage in range(ranks.pp):
        members = range(stage * ranks.tp, (stage + 1) * ranks.tp)
        if ranks.tp > 1:
            wanted = ("group", ranks.tp, ranks.part_numbers)
            found.append(Part(members[0], wanted, tuple((rank, "group") for rank in members)))
        if stage + 1 < ranks.pp and not carried:
            found += [_pipe(ranks, hosts, rank, rank + ranks.tp) for rank in members]
    return found


def _pipe(ranks: Ranks, hosts: Sequence[Host] | None, before: int, after: int) -> Part:
    wanted: tuple[Any, ...] = ("ring", PIPE_SLOTS, ranks.rows_bytes)
    if hosts is not None and hosts[before].id != hosts[after].id:
        wanted = ("port", hosts[before].address)
    return Part(before, wanted, ((before, "after"), (after, "before")))


def wire(
    ranks: Ranks, parts: Sequence[Part], made: Sequence[dict[str, Any]], carried: bool = False
) -> list[dict[str, Any]]:
    """`penstock_decoder::Wiring` for each rank, but for keys. `made` is what came of each part."""
    wirings = [_empty(ranks, rank // ranks.tp, carried) for rank in range(ranks.size)]
    for part, thing in zip(parts, made, strict=True):
        if thing.get("kind") == "stream":
            thing = {**thing, "capacity": ranks.rows_bytes}
        for rank, name in part.users:
            wirings[rank][name] = {**thing, "rank": rank % ranks.tp} if name == "group" else thing
    return wirings


def keyed(wiring: dict[str, Any], key: bytes) -> str:
    """JSON of a rank's wiring with the key of its streams, which never goes over a stream itself."""
    whole = dict(wiring)
    for name in ("before", "after"):
        if whole[name] is not None and whole[name]["kind"] == "stream":
            whole[name] = {**whole[name], "key": key.hex()}
    return json.dumps(whole)


def _empty(ranks: Ranks, stage: int, carried: bool) -> dict[str, Any]:
    return {
        "group": None,
        "before": CARRIED if carried and stage else None,
        "after": CARRIED if carried and stage + 1 < ranks.pp else None,
        "patience_s": PATIENCE,
    }
