"""The time that measuring steps may take, and lines about its progress."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60.0
"""Default time limit of `--measure`."""
EVERY = 5.0
"""Minimum number of seconds between two lines about progress."""


class TimeLimit:
    """Time that is left of `seconds`. `said` is called with lines about progress."""

    def __init__(
        self,
        seconds: float,
        said: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._said, self._clock = seconds, said, clock
        self._began = clock()
        self._reported = -EVERY

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def is_over(self) -> bool:
        return self.spent >= self._seconds

    def has_time_after(self, done: int) -> bool:
        """Whether one more repeat fits, if it takes as long as each of the `done` ones took."""
        return done == 0 or self.spent * (done + 1) / done <= self._seconds

    def report(self, what: str) -> None:
        """Report what is measured and how much time is left, at most every EVERY seconds."""
        spent = self.spent
        if spent - self._reported >= EVERY:
            self._reported = spent
            left = self._seconds - spent
            self._said(f"{what}, {f'at most {left:.0f} s' if left > 0 else 'no time'} left")
