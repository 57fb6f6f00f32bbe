"""Topology: a rank group for each stage, and a pipe between neighbouring ranks of two stages.

Ranks on one host use shared memory, ranks on several hosts use streams. Shared memory and ports are
created on the host of the first rank that uses them (`LocalResources`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.executor.ranks.layout import RankLayout

LOOPBACK = "127.0.0.1"
PATIENCE = 600.0
"""Seconds that a rank waits for a message of another rank. A last resort: other mechanisms detect a
lost rank sooner.
"""
PIPE_CELLS = 2
"""Ring cells of a pipe between two stages, each for one step's rows. With two cells a stage may be
one step ahead of the next.
"""


class Host(Protocol):
    """The host of a rank."""

    @property
    def id(self) -> object: ...

    @property
    def address(self) -> str:
        """Address at which other hosts reach this host."""


@dataclass(frozen=True, slots=True)
class CommResource:
    """Shared memory or a port, created on the host of rank `maker`. `users` has the ranks that use
    it, each with the wiring field that describes the resource.
    """

    maker: int
    request: tuple[Any, ...]
    """Argument of `LocalResources.make`."""
    users: tuple[tuple[int, str], ...]


def comm_resources(
    layout: RankLayout, hosts: Sequence[Host] | None = None, carried: str = ""
) -> list[CommResource]:
    """The communication resources that ranks need, on `hosts` (the host of each rank) or on a
    single host. If the caller itself sends the hidden states between stages, no pipes are created:
    `carried` is then "carried" (as bytes) or "tensors".
    """
    found = []
    for stage in range(layout.pp):
        members = range(stage * layout.tp, (stage + 1) * layout.tp)
        if layout.tp > 1:
            users = tuple((rank, "group") for rank in members)
            found.append(CommResource(members[0], _group(layout, hosts, members), users))
        if stage + 1 < layout.pp and not carried:
            found += [_pipe(layout, hosts, rank, rank + layout.tp) for rank in members]
    return found


def _group(
    layout: RankLayout, hosts: Sequence[Host] | None, members: Sequence[int]
) -> tuple[Any, ...]:
    if hosts is not None and any(hosts[rank].id != hosts[members[0]].id for rank in members):
        return ("port", hosts[members[0]].address)
    if layout.own_sums:
        return ("port", LOOPBACK)
    return ("group", layout.tp, layout.group_numbers)


def _pipe(
    layout: RankLayout, hosts: Sequence[Host] | None, before: int, after: int
) -> CommResource:
    request: tuple[Any, ...] = ("ring", PIPE_CELLS, layout.rows_bytes)
    if hosts is not None and hosts[before].id != hosts[after].id:
        request = ("port", hosts[before].address)
    return CommResource(before, request, ((before, "after"), (after, "before")))


def wire(
    layout: RankLayout,
    resources: Sequence[CommResource],
    made: Sequence[dict[str, Any]],
    carried: str = "",
) -> list[dict[str, Any]]:
    """`penstock_decoder::Wiring` of each rank, without the keys of streams. `made` has the result
    of `LocalResources.make` for each of `resources`.
    """
    wirings = [_empty(layout, rank // layout.tp, carried) for rank in range(layout.size)]
    for resource, fields in zip(resources, made, strict=True):
        streams = fields.get("kind") == "stream"
        for rank, name in resource.users:
            own = dict(fields)
            if name == "group":
                own |= {"rank": rank % layout.tp, "ranks": layout.tp}
            if streams:
                own["capacity"] = layout.group_numbers if name == "group" else layout.rows_bytes
            wirings[rank][name] = own
    return wirings


def keyed(wiring: dict[str, Any], key: bytes) -> str:
    """JSON of a wiring, with the key of its streams added. Keys are never sent over a stream."""
    whole = dict(wiring)
    for name in ("group", "before", "after"):
        if whole[name] is not None and whole[name]["kind"] == "stream":
            whole[name] = {**whole[name], "key": key.hex()}
    return json.dumps(whole)


def _empty(layout: RankLayout, stage: int, carried: str) -> dict[str, Any]:
    return {
        "group": None,
        "before": {"kind": carried} if carried and stage else None,
        "after": {"kind": carried} if carried and stage + 1 < layout.pp else None,
        "patience_s": PATIENCE,
    }
