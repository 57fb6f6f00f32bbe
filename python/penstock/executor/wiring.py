"""Which shared memory each rank needs: a group for each stage, a pipe between neighbours of two stages."""

from __future__ import annotations

import json
from typing import Any, Protocol

from penstock.core import Ranks

PATIENCE = 600.0
"""Seconds that a rank waits for another. Lost ones are noticed otherwise; this ends what nobody noticed."""
PIPE_SLOTS = 2
"""A stage may be one step ahead of the next."""


class Maker(Protocol):
    def ring(self, readers: int, slots: int, capacity: int) -> dict[str, Any]: ...

    def group(self, ranks: int, capacity: int) -> dict[str, Any]: ...


def wire(ranks: Ranks, files: Maker) -> list[str]:
    """JSON of `penstock_decoder::Wiring` for each rank."""
    tp, pp = ranks.tp, ranks.pp
    groups = [files.group(tp, ranks.part_numbers) if tp > 1 else None for _ in range(pp)]
    pipes = [[_pipe(ranks, files) for _ in range(tp)] for _ in range(pp - 1)]
    wirings = []
    for rank in range(ranks.size):
        stage, of_stage = divmod(rank, tp)
        group = groups[stage]
        wiring = {
            "group": {**group, "rank": of_stage} if group else None,
            "before": pipes[stage - 1][of_stage] if stage else None,
            "after": pipes[stage][of_stage] if stage < pp - 1 else None,
            "patience_s": PATIENCE,
        }
        wirings.append(json.dumps(wiring))
    return wirings


def _pipe(ranks: Ranks, files: Maker) -> dict[str, Any]:
    return {"kind": "ring", **files.ring(1, PIPE_SLOTS, ranks.rows_bytes)}
