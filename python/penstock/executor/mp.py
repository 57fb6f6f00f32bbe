"""Ranks as processes of this host: one ring takes plans to all, each rank's own ring brings its answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.comm import SharedFiles
from penstock.config import EngineConfig
from penstock.core import Ranks, RankTask
from penstock.executor.processes import Processes
from penstock.executor.ranks import LEAST_ANSWER, RanksExecutor
from penstock.executor.wiring import wire

PATIENCE = 600.0
"""Seconds that ranks may leave plans lying; there are never more plans than slots."""


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
        files = SharedFiles(directory)
        try:
            jobs = self._jobs(files, config)
            files.seal()
            self._open(jobs, files)
            texts = [json.dumps(job) for job in jobs]
            return Processes(worker, texts, files.descriptors, self.on_exit)
        finally:
            files.close()

    def _jobs(self, files: SharedFiles, config: EngineConfig) -> list[dict[str, Any]]:
        ranks = self._ranks
        plans = {
            **files.ring(ranks.size, ranks.plan_slots, ranks.plan_bytes),
            "readers": ranks.size,
        }
        wirings = wire(ranks, files)
        jobs = []
        for rank, (shard, wiring) in enumerate(zip(ranks.shards, wirings, strict=True)):
            reads = rank == ranks.reader
            room = max(ranks.result_bytes if reads else 0, LEAST_ANSWER)
            task = RankTask(rank, reads, config.to_json(), ranks.num_blocks, shard, wiring)
            answers = files.ring(1, ranks.answer_slots, room)
            jobs.append({"task": asdict(task), "plans": {**plans, "reader": rank}, "answers": answers})
        return jobs

    def _open(self, jobs: list[dict[str, Any]], files: SharedFiles) -> None:
        from penstock._native import Fence, RingReader, RingWriter

        plans = {key: value for key, value in jobs[0]["plans"].items() if key != "reader"}
        self._plans = RingWriter(**plans, patience=PATIENCE)
        self._answers = [RingReader(**job["answers"], reader=0, readers=1) for job in jobs]
        self._fences = [Fence(f"/proc/self/fd/{descriptor}") for descriptor in files.descriptors]
