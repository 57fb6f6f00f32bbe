"""Interfaces of all executors, as the engine uses them."""

from __future__ import annotations

from typing import Protocol

from penstock.backends import StepFuture
from penstock.core import Allocation, Loaded, PenstockError, StepPlan
from penstock.core.transfer import OpenTiers, Transfer, TransferResult


class WorkersLostError(PenstockError):
    """A rank is lost or unusable. The executor has stopped all ranks and computes no further
    step.
    """


class TransferExecutor(Protocol):
    """Transfers of KV blocks between the KV pools and the tiers (RAM, disk, remote stores). Every
    rank moves the part of the bytes that it owns.
    """

    def open_tiers(self, tiers: OpenTiers) -> None:
        """Open the configured tiers on every rank, before the first transfer.

        Raises PenstockError, which names the rank, the tier, the reason and the remedy. After an
        error no rank is usable.
        """

    def transfer(self, transfer: Transfer) -> None:
        """Start a transfer on every rank. Does not block. Steps and transfers run independently."""

    def moved(self) -> list[TransferResult]:
        """Results of the transfers that all ranks have answered since the last call. Does not
        block. Results are combined: done if all ranks are done, found if all ranks found the chunk,
        the sum of bytes, the seconds of the slowest rank, and the first error. Raises
        WorkersLostError if ranks are lost; then no further results follow.
        """

    def mover_reports(self) -> tuple[str, ...]:
        """State of each rank's tiers as JSON, about a second old; an empty tuple without tiers."""


class Executor(Protocol):
    depth: int
    """Number of step plans that must be in flight to keep every rank busy."""

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """Facts, KV shape and free memory of each rank, in rank order."""

    @property
    def transfers(self) -> TransferExecutor: ...

    def allocate(self, allocation: Allocation) -> None:
        """Allocate the KV pools and state slots on every rank, before the first step.

        Raises PenstockError with the reason of the first rank that failed. After an error no rank
        is usable.
        """

    def submit(self, plan: StepPlan) -> StepFuture:
        """Start a step. Does not block. Plans are computed in order of submission.

        The future raises the step's error, or WorkersLostError if no further step will be computed.
        """

    def check(self) -> None:
        """Raise WorkersLostError if ranks were lost, even if no step was in flight."""

    def close(self) -> None:
        """End the ranks once pending stores are written, or `OpenTiers.flush_s` seconds have
        passed. Results of steps in flight are dropped.
        """
