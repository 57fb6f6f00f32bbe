"""A backend without a model: the real worker around `FakeExecutor`.

Its shard has the rank and how it fails: `{"rank": 1, "how": "raise", "step": 2}`, and `tiers` what
goes wrong with those. It has a named tier and RAM slots; transfers are done at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config import EngineConfig, Raw, resolve
from penstock.core import (
    Allocation,
    KvGroup,
    KvSpec,
    Numerics,
    PenstockError,
    StepPlan,
    StepResult,
    WorkerFacts,
)
from penstock.core.progress import ProgressLine, Report
from penstock.core.transfer import OpenTiers, Transfer, TransferResult
from penstock.executor.ranks import RankLayout
from penstock.model import ModelInfo
from tests.fakes.executor import FakeExecutor

MODEL = Path(__file__).parents[1] / "fixtures/tiny/llama"
BLOCKS = 8
CARRIED = b"left by a stage"

Fault = dict[str, Any]


def engine_config(**texts: str) -> EngineConfig:
    """Settings of a tiny model whose ranks have this backend."""
    raw = {key: Raw("", (text,)) for key, text in {"block_size": "16", **texts}.items()}
    config = resolve(raw, str(MODEL), "m").engine
    return replace(config, compute=replace(config.compute, backend=__name__))


def rank_layout(tp: int, pp: int, **faults: Fault) -> RankLayout:
    """`rank1={"how": "raise", "step": 2}` makes rank 1 fail."""
    ranks = range(tp * pp)
    shards = tuple(json.dumps({"rank": rank, **faults.get(f"rank{rank}", {})}) for rank in ranks)
    return RankLayout(tp, pp, (pp - 1) * tp, shards, 100, 4000, 10_000, 10_000)


def load(
    config: EngineConfig, _info: ModelInfo, rank: tuple[str, str], report: Report
) -> FakeBackend:
    fault = json.loads(rank[0])
    for share in fault.get("loading", ()):
        report(ProgressLine(f"{share:.0%} of the weights", share))
    return FakeBackend(config, fault)


class FakeBackend:
    def __init__(self, config: EngineConfig, fault: Fault) -> None:
        self.rank: int = fault["rank"]
        numerics = Numerics((), "none", "fake")
        self.facts = WorkerFacts(bytes(32), numerics, f"rank {self.rank}", 1, 0)
        self.fault = fault
        self._config = config
        if fault.get("how") == "refuse":
            raise PenstockError("tensor 'x' is damaged")
        if fault.get("how") == "exit at load":
            os._exit(3)

    def kv_spec(self) -> KvSpec:
        groups = self.fault.get("groups", [(1024, None)])
        found = [KvGroup((0,), size, window) for size, window in groups]
        return KvSpec(self._config.cache.block_size, tuple(found))

    def free_memory(self) -> int:
        return int(self.fault.get("free", 1 << 30))

    def allocate(self, allocation: Allocation) -> None:
        if self.fault.get("how") == "refuse blocks":
            raise PenstockError(f"no memory for {list(allocation.blocks)} blocks")
        self._executor = FakeExecutor(
            num_blocks=allocation.blocks[0],
            block_size=self._config.cache.block_size,
            max_num_seqs=self._config.scheduler.max_num_seqs,
            max_batched_tokens=self._config.scheduler.max_num_batched_tokens,
            named=1,
            ram_slots=4,
            auto=True,
            depth=8,
        )

    def submit(self, plan: StepPlan) -> FakeFuture:
        return FakeFuture(self, plan.step, self._executor.submit(plan))

    def put(self, carried: bytes) -> None:
        assert carried == CARRIED

    def fetch(self, _timeout: float) -> bytes:
        return CARRIED

    def open_tiers(self, tiers: OpenTiers) -> RankMover:
        if self.fault.get("tiers") == "refuse":
            raise PenstockError("disk:/kv is not writable")
        return RankMover(self.rank, self.fault.get("tiers"), self._executor)

    def close(self) -> None: ...

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


class FakeFuture:
    def __init__(self, backend: FakeBackend, step: int, ticket: Any) -> None:
        self._backend, self._step, self._ticket = backend, step, ticket

    def result(self, _timeout: float | None = None) -> StepResult:
        fault = self._backend.fault
        if self._step == fault.get("step") or self._step in fault.get("steps", ()):
            self._backend.fail(fault["how"])
        result: StepResult = self._ticket.result()
        return result


class RankMover:
    def __init__(self, rank: int, fault: str | None, executor: FakeExecutor) -> None:
        self._rank, self._fault, self._mover = rank, fault, executor.mover
        self._news = threading.Condition()
        if fault == "stall":
            self._mover.stall(1)

    def submit(self, transfer: Transfer) -> None:
        if self._fault == "raise":
            raise RuntimeError("the fake mover was told to raise")
        with self._news:
            self._mover.submit(transfer)
            self._news.notify()

    def take(self, timeout: float) -> list[TransferResult]:
        """Ranks differ in the bytes they move."""
        with self._news:
            if not (moved := self._mover.take()):
                self._news.wait(timeout)
                moved = self._mover.take()
        return [replace(each, bytes=each.bytes + self._rank) for each in moved]

    def report(self) -> str:
        return json.dumps({"rank": self._rank, "asked": len(self._mover.asked)})

    def close(self, seconds: float) -> None:
        """A rank that stalls has something to store, for as long as it may."""
        if self._fault == "stall":
            time.sleep(seconds)
        print(f"rank {self._rank} closed its tiers", file=sys.stderr, flush=True)
