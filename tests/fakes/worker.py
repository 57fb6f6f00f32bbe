"""A rank without a model, run as `python -P -m tests.fakes.worker`: the real process around
`FakeExecutor`.

Its shard says how it fails: `{"how": "raise", "step": 2}`, and `tiers` what goes wrong with those.
It has a named tier and RAM slots; what is asked of them is done at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace

from penstock.config import EngineConfig
from penstock.core import PenstockError, RankTask, StepPlan, StepResult, WorkerFacts
from penstock.core.transfer import Moved, OpenTiers, Transfer
from penstock.worker.process import main

from tests.fakes.executor import FakeExecutor


class FakeRank:
    def __init__(self, task: RankTask) -> None:
        config = EngineConfig.from_json(task.config)
        self.facts = WorkerFacts(bytes(32), "fake", f"rank {task.rank}", 1, 0)
        self.fault = json.loads(task.shard)
        if self.fault.get("how") == "refuse":
            raise PenstockError("tensor 'x' is damaged")
        self._executor = FakeExecutor(
            num_blocks=task.num_blocks,
            block_size=config.cache.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_batched_tokens=config.scheduler.max_num_batched_tokens,
            named=1,
            ram_slots=4,
            auto=True,
        )
        self._rank = task.rank
        self._news = threading.Condition()
        self._tiers = self.fault.get("tiers")

    def submit(self, plan: StepPlan) -> FakeRank:
        self._ticket = self._executor.submit(plan)
        self._step = plan.step
        return self

    def result(self) -> StepResult:
        if self._step == self.fault.get("step"):
            self.fail(self.fault["how"])
        return self._ticket.result()

    def open_tiers(self, tiers: OpenTiers) -> None:
        if self._tiers == "refuse":
            raise PenstockError("disk:/kv is not writable")
        if self._tiers == "stall":
            self._executor.mover.stall(1)
        self._opened = tiers

    def transfer(self, transfer: Transfer) -> None:
        if self._tiers == "raise":
            raise RuntimeError("the fake mover was told to raise")
        with self._news:
            self._executor.transfer(transfer)
            self._news.notify()

    def moved(self, timeout: float) -> list[Moved]:
        """Ranks differ in the bytes they move."""
        with self._news:
            if not (moved := self._executor.moved()):
                self._news.wait(timeout)
                moved = self._executor.moved()
        return [replace(each, bytes=each.bytes + self._rank) for each in moved]

    def mover_report(self) -> str:
        return json.dumps({"rank": self._rank, "asked": len(self._executor.mover.asked)})

    def close_tiers(self) -> None:
        """A rank that stalls has something to store, for as long as it may."""
        if self._tiers == "stall":
            time.sleep(self._opened.flush_s)
        print(f"rank {self._rank} closed its tiers", file=sys.stderr, flush=True)

    def fail(self, how: str) -> None:
        if how == "raise":
            raise RuntimeError("the fake rank was told to raise")
        if how == "wrong plan":
            raise ValueError("the fake rank was told not to like the plan")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        time.sleep(3600)


if __name__ == "__main__":
    os._exit(main(load=FakeRank))
