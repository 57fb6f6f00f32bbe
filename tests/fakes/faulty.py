"""`penstock serve` whose ranks fail when they are told to: `python -m tests.fakes.faulty serve
MODEL ...`.

Everything is real but for one line: before a rank computes a plan, it looks for the file that
RANK_FAULT names. If that holds its number, it takes the file away and fails in the way that the
file says:

raise    RuntimeError instead of a result
refuse   its decoder gets another plan than those of the other ranks, one that it cannot compute

The same module is the server, its engine and, by the name that the engine gives its executor, each
rank.
"""

from __future__ import annotations

import os
import sys
from array import array
from dataclasses import replace
from pathlib import Path

from penstock.cli import main as cli
from penstock.cli import serve
from penstock.core import RankTask, StepPlan, WorkerFacts
from penstock.engine import process as engine
from penstock.engine import startup
from penstock.worker import actor
from penstock.worker import process as rank
from penstock.worker.loop import Ticket

NAME = "tests.fakes.faulty"
VARIABLE = "RANK_FAULT"
MESSAGE = "the rank was told to raise"
NO_TOKEN = 2**30


def order(file: Path, number: int, how: str) -> None:
    """Have rank `number` fail in its next step."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{number} {how}")
    draft.replace(file)


class FaultyRank:
    def __init__(self, task: RankTask) -> None:
        self._worker = rank.load_rank(task)
        self._number = str(task.rank)
        self._orders = Path(os.environ[VARIABLE])
        self.put, self.fetch = self._worker.put, self._worker.fetch

    @property
    def facts(self) -> WorkerFacts:
        return self._worker.facts

    def submit(self, plan: StepPlan) -> Ticket:
        how = self._ordered()
        if how == "raise":
            raise RuntimeError(MESSAGE)
        if how == "refuse":
            plan = replace(plan, tokens=array("i", [NO_TOKEN]) * len(plan.tokens))
        return self._worker.submit(plan)

    def _ordered(self) -> str:
        try:
            number, how = self._orders.read_text().split()
        except FileNotFoundError:
            return ""
        if number != self._number:
            return ""
        self._orders.unlink()
        return how


class Actor(actor.Actor):
    def load_rank(self, task: RankTask) -> FaultyRank:
        return FaultyRank(task)


def main() -> int:
    if "--rank" in sys.argv:
        return rank.main(load=FaultyRank)
    if "--socket" in sys.argv:
        startup.WORKER = startup.RAY_WORKER = NAME
        return engine.main()
    usual = serve.engine_argv
    serve.engine_argv = lambda config: [
        NAME if word == "penstock.engine" else word for word in usual(config)
    ]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
