"""Ranks that compute nothing, to measure the cost of plans and answers alone.

A backend, selected by its module name. Each stage sends one row of SmolLM2's residual stream to the
next, so that stages wait for each other.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from penstock._native import RingReader, RingWriter
from penstock.config import EngineConfig
from penstock.core import KvGroup, KvSpec, Numerics, StepPlan, StepResult, WorkerFacts
from penstock.model import ModelInfo

ROW = bytes(576 * 4)
PATIENCE = 60.0


def load(config: EngineConfig, info: ModelInfo, rank: tuple[str, str], report: object) -> EmptyRank:
    return EmptyRank(json.loads(rank[1]))


class EmptyRank:
    """Returns token 1 for each sequence of any plan."""

    def __init__(self, wiring: dict[str, Any]) -> None:
        self.facts = WorkerFacts(bytes(32), Numerics((), "none", "none"), "none", 1, 0)
        self._before = _pipe(wiring["before"], RingReader, reader=0, readers=1)
        self._after = _pipe(wiring["after"], RingWriter, readers=1, patience=PATIENCE)

    def kv_spec(self) -> KvSpec:
        return KvSpec(32, (KvGroup((0,), 1),))

    def free_memory(self) -> int:
        return 1 << 30

    def allocate(self, blocks: Sequence[int]) -> None: ...

    def close(self) -> None: ...

    def submit(self, plan: StepPlan) -> EmptyRank:
        self._sequences = len(plan.slots)
        return self

    def result(self, timeout: float | None = None) -> StepResult:
        if self._before is not None and self._before.receive(PATIENCE) is None:
            raise TimeoutError("the stage before says nothing")
        if self._after is not None:
            self._after.send(ROW)
        ones = array("i", [1]) * self._sequences
        return StepResult(ones, ones)

    def put(self, carried: bytes) -> None:
        """Accept a row received through a compiled graph."""

    def fetch(self, timeout: float) -> bytes:
        return ROW


def _pipe(pipe: dict[str, Any] | None, kind: type, **own: object) -> Any:
    """The end of a pipe. None without a pipe, or if the caller carries the row."""
    if pipe is None or pipe["kind"] != "ring":
        return None
    return kind(path=pipe["path"], slots=pipe["slots"], capacity=pipe["capacity"], **own)
