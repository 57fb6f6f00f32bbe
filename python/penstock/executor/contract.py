"""Protocols that the engine sees of any executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.backends import StepFuture
from penstock.core import Loaded, PenstockError, StepPlan
from penstock.core.transfer import OpenTiers, Transfer, TransferResult


class WorkersLostError(PenstockError):
    """A rank is lost or unusable: the executor has ended all ranks and computes no more."""


class TransferExecutor(Protocol):
    """Transfers of KV between the pools and the tiers, on every rank."""

    def open_tiers(self, tiers: OpenTiers) -> None:
        """Open the tiers of the configuration on every rank, before the first transfer.

        PenstockError names the rank and the tier that cannot be opened, the reason and the remedy;
        no rank is usable then.
        """

    def transfer(self, transfer: Transfer) -> None:
        """Start a transfer on every rank and return at once. Steps and transfers do not wait for
        each other.
        """

    def moved(self) -> list[TransferResult]:
        """Transfers that all ranks have answered since the last call, without waiting: done where
        all are, found where all have it, bytes of all, seconds of the slowest, the first error.
        WorkersLostError ends the others.
        """

    def mover_reports(self) -> tuple[str, ...]:
        """State of each rank's tiers (JSON), about a second old; () without tiers."""


class Executor(Protocol):
    depth: int
    """Plans in flight that keep every rank busy."""

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """Facts, KV shape and free memory of each rank."""

    @property
    def transfers(self) -> TransferExecutor: ...

    def allocate(self, blocks: Sequence[int]) -> None:
        """Allocate so many KV blocks of each group on every rank, before the first step.

        PenstockError with the reason of the first rank that cannot; no rank is usable then.
        """

    def submit(self, plan: StepPlan) -> StepFuture:
        """Start a step and return at once. Plans are computed in the order of submission.

        The future raises the step's error, or WorkersLostError when no more will be computed.
        """

    def check(self) -> None:
        """WorkersLostError when ranks were lost while idle."""

    def close(self) -> None:
        """End the ranks, after pending stores were written or `OpenTiers.flush_s` passed. Results
        in flight are dropped.
        """
