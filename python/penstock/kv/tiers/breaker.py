"""Circuit breaker of a chunk tier (Nygard 2007, "Release It!"): the one place that knows whether a
tier is in use.

    closed --failures in a row, or a stall--> open --pause--> half open --trial succeeds--> closed
                                               ^                   |
                                               +--- trial fails ---+

The pause doubles each time it opens. It starts anew only after as many successes in a row as
failures open it, so that a tier that works now and then is not hammered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from enum import Enum

FAILURES = 5
"""Failures in a row that open a breaker."""
SHORTEST, LONGEST = 1.0, 60.0
"""Seconds of the first pause, and of the longest."""
QUIET = 60.0
"""Seconds between two lines in the log that say of one tier that it is skipped, at least."""

log = logging.getLogger("penstock.kv.tiers")


class BreakerState(Enum):
    CLOSED = 0
    """Every transfer may begin."""
    HALF_OPEN = 1
    """The pause is over: one transfer may begin, the trial, which decides."""
    OPEN = 2
    """No transfer may begin."""


class CircuitBreaker:
    """Told which loads, stores and lookup probes of a tier began, by their ids, and how each ended:
    `succeeded`, `failed`, `stalled` or `inconclusive`.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        """`name` is the tier's, for the log. `clock` gives seconds and never goes back."""
        self._name = name
        self._clock = clock
        self._until: float | None = None
        """End of the pause; None while it is closed."""
        self._pause = SHORTEST
        self._failures = self._successes = 0
        """In a row."""
        self._trial: int | None = None
        self._stalled: set[int] = set()
        """Transfers that stalled and have not ended since."""
        self._told = False
        """Whether the log says that the tier is skipped."""
        self._quiet_until = -math.inf

    @property
    def state(self) -> BreakerState:
        if self._until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._until else BreakerState.HALF_OPEN

    @property
    def admits(self) -> bool:
        """Whether a transfer may begin now."""
        state = self.state
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and self._trial is None
        )

    def began(self, transfer: int) -> None:
        """A transfer that was admitted."""
        if self._until is not None:
            self._trial = transfer

    def succeeded(self, transfer: int) -> None:
        """Its bytes were moved. One that had stalled shows as well as a trial that the tier is
        back; one that merely began before the breaker opened does not.
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
        """By a fault of the tier. One that had stalled was counted then."""
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
        """It was not answered for so long. It may still end."""
        trial = transfer == self._trial
        self._stalled.add(transfer)
        if trial or self._until is None:
            self._open(f"no answer within {seconds:.1f} s")

    def inconclusive(self, transfer: int) -> None:
        """It ended and says nothing of the tier: cancelled, missing, no room. The next one is the
        trial.
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
