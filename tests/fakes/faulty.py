"""`penstock serve` whose ranks fail on demand: `python -m tests.fakes.faulty serve MODEL ...`.

Everything is real but for the backend: before a rank computes a plan, it looks for the file that
RANK_FAULT names. If that holds its number, it takes the file away and fails in the way that the
file says:

raise    RuntimeError instead of a result
refuse   its decoder gets another plan than those of the other ranks, one that it cannot compute

The same module is the server and, by its name, the backend of the ranks.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.backends import StepFuture, cpu
from penstock.cli import main as cli
from penstock.config import EngineConfig
from penstock.core import StepPlan
from penstock.core.progress import Report
from penstock.model import ModelInfo

NAME = "tests.fakes.faulty"
VARIABLE = "RANK_FAULT"
MESSAGE = "the rank was told to raise"
NO_TOKEN = 2**30


def order(file: Path, number: int, how: str) -> None:
    """Have rank `number` fail in its next step."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{number} {how}")
    draft.replace(file)


def load(
    config: EngineConfig, info: ModelInfo, rank: tuple[str, str], report: Report
) -> FaultyBackend:
    shard = json.loads(rank[0])
    stage = shard["stage"][0]
    number = stage * config.parallel.tensor + shard["rank"]
    return FaultyBackend(cpu.load(config, info, rank, report), str(number))


class FaultyBackend:
    def __init__(self, backend: cpu.CpuBackend, number: str) -> None:
        self._backend = backend
        self._number = number
        self._orders = Path(os.environ[VARIABLE])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def submit(self, plan: StepPlan) -> StepFuture:
        how = self._ordered()
        if how == "raise":
            raise RuntimeError(MESSAGE)
        if how == "refuse":
            plan = replace(plan, tokens=array("i", [NO_TOKEN]) * len(plan.tokens))
        return self._backend.submit(plan)

    def _ordered(self) -> str:
        try:
            number, how = self._orders.read_text().split()
        except FileNotFoundError:
            return ""
        if number != self._number:
            return ""
        self._orders.unlink()
        return how


def main() -> int:
    return cli.main([*sys.argv[1:], "--device", NAME])


if __name__ == "__main__":
    sys.exit(main())
