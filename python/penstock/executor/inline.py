"""The executor for a single rank, which runs in the engine's process."""

from __future__ import annotations

from penstock.backends import Backend, KvMover, StepFuture
from penstock.core import Allocation, Loaded, StepPlan
from penstock.core.transfer import OpenTiers, Transfer, TransferResult


class InlineExecutor:
    """Single-rank executor. The backend computes on its own threads, so `submit` does not block."""

    depth = 2

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.loaded = (Loaded(backend.facts, backend.kv_spec(), backend.free_memory()),)
        self.transfers = InlineTransfers(backend)

    def allocate(self, allocation: Allocation) -> None:
        self._backend.allocate(allocation)

    def submit(self, plan: StepPlan) -> StepFuture:
        return self._backend.submit(plan)

    def check(self) -> None:
        """Nothing to check: the rank lives as long as this process."""

    def close(self) -> None:
        self.transfers.close()
        self._backend.close()


class InlineTransfers:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._mover: KvMover | None = None
        self._flush_s = 0.0

    def open_tiers(self, tiers: OpenTiers) -> None:
        self._mover = self._backend.open_tiers(tiers)
        self._flush_s = tiers.flush_s

    def transfer(self, transfer: Transfer) -> None:
        assert self._mover is not None, "a transfer before the tiers are open"
        self._mover.submit(transfer)

    def moved(self) -> list[TransferResult]:
        return self._mover.take(0.0) if self._mover else []

    def mover_reports(self) -> tuple[str, ...]:
        return (self._mover.report(),) if self._mover else ()

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close(self._flush_s)
            self._mover = None
