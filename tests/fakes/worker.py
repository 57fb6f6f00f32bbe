"""A rank without a model, run as `python -P -m tests.fakes.worker`: the real process around `FakeExecutor`.

Its shard says how it fails: `{"how": "raise", "step": 2}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from penstock.config import EngineConfig
from penstock.core import PenstockError, RankTask, StepPlan, StepResult, WorkerFacts
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
        )

    def submit(self, plan: StepPlan) -> FakeRank:
        self._ticket = self._executor.submit(plan)
        self._step = plan.step
        return self

    def result(self) -> StepResult:
        if self._step == self.fault.get("step"):
            self.fail(self.fault["how"])
        return self._ticket.result()

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
    sys.exit(main(load=FakeRank))
