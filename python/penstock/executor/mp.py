"""Ranks as processes of this host: one ring takes plans to all, each rank's own ring brings its
answers.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from penstock.config import EngineConfig
from penstock.core import Ranks
from penstock.executor.processes import Processes
from penstock.executor.ranks import RanksExecutor
from penstock.executor.rings import Rings
from penstock.executor.wiring import parts, wire
from penstock.ranks import LocalParts


class MultiprocExecutor(RanksExecutor):
    """`worker` names the module that is run for each rank. Returns when all are ready.

    Raises PenstockError with the first rank's reason when one cannot load its part.
    """

    def __init__(self, worker: str, ranks: Ranks, config: EngineConfig, directory: Path) -> None:
        super().__init__(ranks)
        self._members = self._processes = self._start(worker, config, directory)
        try:
            self.facts = self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks, in their order."""
        return self._processes.pids

    def _start(self, worker: str, config: EngineConfig, directory: Path) -> Processes:
        ranks = self._ranks
        local = LocalParts(directory)
        try:
            rings = Rings(ranks, {}, local.files)
            wanted = parts(ranks)
            wirings = wire(ranks, wanted, local.make([part.wanted for part in wanted]))
            tasks = ranks.tasks(config.to_json(), map(json.dumps, wirings))
            jobs = [
                {"task": asdict(task), **job} for task, job in zip(tasks, rings.jobs, strict=True)
            ]
            self._plans, self._answers = rings.plans, rings.answers
            self._fences = local.files.fences()
            return Processes(
                worker, list(map(json.dumps, jobs)), local.files.descriptors, self.on_exit
            )
        finally:
            local.close()
