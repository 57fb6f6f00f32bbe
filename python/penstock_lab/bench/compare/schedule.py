"""Order of the runs of a comparison."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock_lab.bench.compare.summary import Workload
from penstock_lab.bench.compare.workloads import Planned


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: a server with a workload. Repeats count from 1."""

    server: str
    planned: Planned
    repeat: int


def interleaved(
    servers: Sequence[str], workloads: Sequence[Planned], repeats: int
) -> Iterator[Turn]:
    """Each server runs once for each repeat and workload. The first server rotates, so that no
    server always runs after the same other one.
    """
    for repeat in range(1, repeats + 1):
        for index, planned in enumerate(workloads):
            first = (repeat - 1 + index) % max(1, len(servers))
            for server in [*servers[first:], *servers[:first]]:
                yield Turn(server, planned, repeat)


def sequential(
    servers: Sequence[str], workloads: Sequence[Planned], repeats: int
) -> Iterator[Turn]:
    """All repeats and workloads of one server before the next server starts."""
    for server in servers:
        for repeat in range(1, repeats + 1):
            for planned in workloads:
                yield Turn(server, planned, repeat)


def seed_of(base: int, workload: Workload, repeat: int, attempt: int) -> int:
    """Seed of a run. It is equal for all servers. It differs by repeat and attempt, so that no
    prefix cache has the prompts already. It depends on the workload's name and not on its position,
    so a comparison of some of the workloads sends the same prompts.
    """
    return zlib.crc32(f"{base}/{workload.label}/{repeat}/{attempt}".encode()) & 0x7FFFFFFF
