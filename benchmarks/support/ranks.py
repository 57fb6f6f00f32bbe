"""Ranks that compute nothing: what is left of a step is what brings its plan and takes its answer
away.

The `mp` executor runs this module, the `ray` executor makes actors of `Actor`. Stages hand on one
row of the residual stream of SmolLM2, the way their wiring says, so that a stage waits for the one
before.
"""

from __future__ import annotations

import json
import sys
from array import array
from typing import Any

from penstock._native import RingReader, RingWriter
from penstock.core import RankTask, StepPlan, StepResult, WorkerFacts
from penstock.worker import actor
from penstock.worker.process import main

ROW = bytes(576 * 4)
PATIENCE = 60.0


class EmptyRank:
    """A token of 1 for each sequence of any plan."""

    def __init__(self, task: RankTask) -> None:
        self.facts = WorkerFacts(bytes(32), "nothing", "none", 1, 0)
        wiring = json.loads(task.wiring)
        self._before = _pipe(wiring["before"], RingReader, reader=0, readers=1)
        self._after = _pipe(wiring["after"], RingWriter, readers=1, patience=PATIENCE)

    def submit(self, plan: StepPlan) -> EmptyRank:
        self._sequences = len(plan.slots)
        return self

    def result(self) -> StepResult:
        if self._before is not None and self._before.receive(PATIENCE) is None:
            raise TimeoutError("the stage before says nothing")
        if self._after is not None:
            self._after.send(ROW)
        ones = array("i", [1]) * self._sequences
        return StepResult(ones, ones)

    def put(self, carried: bytes) -> None:
        """What a compiled graph has brought."""

    def fetch(self, timeout: float) -> bytes:
        return ROW


class Actor(actor.Actor):
    def load_rank(self, task: RankTask) -> EmptyRank:
        return EmptyRank(task)


def _pipe(pipe: dict[str, Any] | None, kind: type, **own: object) -> Any:
    """None where there is no pipe, or where its caller carries what would go through it."""
    if pipe is None or pipe["kind"] != "ring":
        return None
    return kind(path=pipe["path"], slots=pipe["slots"], capacity=pipe["capacity"], **own)


if __name__ == "__main__":
    sys.exit(main(load=EmptyRank))
