"""Circuit breaker of a tier that stores chunks: disk, Redis, object store (Nygard 2007, "Release
It!"). Only the breaker decides whether the tier is in use.

    closed --failures in a row, or a stall--> open --pause--> half open --trial succeeds--> closed
                                               ^                   |
                                               +--- trial fails ---+

The pause doubles each time the breaker opens. The pause is reset only after FAILURES successes in a
row, so that an unreliable tier is not retried too often.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from enum import Enum

FAILURES = 5
"""Number of consecutive failures that open a breaker, and of consecutive successes that reset its
pause.
"""
SHORTEST, LONGEST = 1.0, 60.0
"""Duration in seconds of an open breaker's first pause, and of the longest."""
QUIET = 60.0
"""Minimum seconds between two log lines about the same skipped tier."""

log = logging.getLogger("penstock.kv.tiers")


class BreakerState(Enum):
    CLOSED = 0
    """The normal state: all transfers may start."""
    HALF_OPEN = 1
    """The pause is over. One trial transfer may start. Its result closes the breaker or opens it
    again.
    """
    OPEN = 2
    """No transfer may start."""


class CircuitBreaker:
    """Tracks loads, stores and probes of a tier by id: `began`, then `succeeded`, `failed`,
    `stalled` or `inconclusive`.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        """`name` is the tier's name in the log. `clock` returns monotonic seconds."""
        self._name = name
        self._clock = clock
        self._until: float | None = None
        """Clock time at which the pause ends; None while the breaker is closed."""
        self._pause = SHORTEST
        self._failures = self._successes = 0
        """Number of consecutive failures, and of consecutive successes."""
        self._trial: int | None = None
        self._stalled: set[int] = set()
        """Stalled transfers that have not ended yet."""
        self._told = False
        """Whether the tier was logged as skipped."""
        self._quiet_until = -math.inf

    @property
    def state(self) -> BreakerState:
        if self._until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._until else BreakerState.HALF_OPEN

    @property
    def admits(self) -> bool:
        """Whether a transfer may start now."""
        state = self.state
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and self._trial is None
        )

    def began(self, transfer: int) -> None:
        """An admitted transfer has started."""
        if self._until is not None:
            self._trial = transfer

    def succeeded(self, transfer: int) -> None:
        """A transfer has moved its bytes. If the transfer was the trial, or had stalled, this
        closes the breaker. Any other transfer began before the breaker opened, so it does not close
        the breaker.
        """
        decides = transfer == self._trial or transfer in self._stalled
        self.inconclusive(transfer)
        if self._until is not None and not decides:
            return
        self._failures = 0
        self._successes += 1
        if self._until is not None:
            self._close()
        elif self._successes >= FAILURES:
            self._pause = SHORTEST

    def failed(self, transfer: int, why: str) -> None:
        """A transfer failed because of the tier. A transfer that had stalled is not counted
        again.
        """
        trial, counted = transfer == self._trial, transfer in self._stalled
        self.inconclusive(transfer)
        if trial:
            self._open(why)
        elif self._until is None and not counted:
            self._successes = 0
            self._failures += 1
            if self._failures >= FAILURES:
                self._open(f"{self._failures} failures in a row, the last: {why}")

    def stalled(self, transfer: int, seconds: float) -> None:
        """A transfer got no answer for `seconds`, which opens the breaker. The transfer may still
        end later.
        """
        trial = transfer == self._trial
        self._stalled.add(transfer)
        if trial or self._until is None:
            self._open(f"no answer within {seconds:.1f} s")

    def inconclusive(self, transfer: int) -> None:
        """A transfer ended without evidence about the tier's health: the transfer was cancelled,
        its chunk was missing, or there was no space. If it was the trial, the next transfer becomes
        the trial.
        """
        self._stalled.discard(transfer)
        if transfer == self._trial:
            self._trial = None

    def _open(self, why: str) -> None:
        now = self._clock()
        if not self._told and now >= self._quiet_until:
            log.warning("KV tier %s is skipped: %s", self._name, why)
            self._told, self._quiet_until = True, now + QUIET
        self._until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST)
        self._failures = self._successes = 0
        self._trial = None

    def _close(self) -> None:
        self._until = None
        self._trial = None
        if self._told:
            log.warning("KV tier %s is back", self._name)
            self._told = False
