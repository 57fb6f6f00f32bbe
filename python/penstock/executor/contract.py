"""What the engine may ask of any executor."""

from __future__ import annotations

from typing import Protocol

from penstock.core import PenstockError, StepPlan, StepResult, WorkerFacts
from penstock.core.transfer import Moved, OpenTiers, Transfer


class WorkersLostError(PenstockError):
    """A rank is gone or unusable, so all are: the executor has ended them and computes nothing any
    more.
    """


class Ticket(Protocol):
    """A step under way."""

    def result(self, timeout: float | None = None) -> StepResult:
        """Wait for the step, after all earlier ones that are of interest.

        Raises what it failed with, `WorkersLostError` when there will be no more, and
        `TimeoutError` after `timeout` seconds.
        """


class Executor(Protocol):
    depth: int
    """Plans in flight that keep every rank busy."""

    @property
    def facts(self) -> tuple[WorkerFacts, ...]:
        """Of each rank, in their order."""

    def submit(self, plan: StepPlan) -> Ticket:
        """Start a step and return at once. Plans are computed in the order of their submission."""

    def open_tiers(self, tiers: OpenTiers) -> None:
        """Open the tiers of the configuration on every rank, before the first transfer.

        PenstockError says which rank cannot open which of them, why, and the remedy; no rank is
        usable then.
        """

    def transfer(self, transfer: Transfer) -> None:
        """Start a movement on every rank and return at once. Steps do not wait for it, nor it for
        them.
        """

    def moved(self) -> list[Moved]:
        """Transfers that all ranks have answered since the last call, joined, without waiting: done
        where all are, found where all have it, bytes of all, seconds of the slowest, the error of
        the first rank that has one. WorkersLostError ends those that were under way.
        """

    def mover_reports(self) -> tuple[str, ...]:
        """What each rank's mover says of its tiers (JSON), about a second old; () without tiers."""

    def check(self) -> None:
        """WorkersLostError when ranks were lost while there was nothing to compute."""

    def close(self) -> None:
        """Let go of the model, when stores under way have ended or had their time
        (`OpenTiers.flush_s`). No result is wanted any more.
        """
