"""Estimates of load and compute times from recent measurements."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core import StepPlan, TierKind
from penstock.core.transfer import RAM

GUESSED = {TierKind.RAM: 4e9, TierKind.DISK: 2e9, TierKind.REMOTE: 5e8}
"""Assumed bandwidth in bytes per second, until a load from the tier has been measured."""
PARALLEL = 2.0
"""Total speed-up of concurrent loads compared with a single load, in all tiers but RAM."""
MEMORY = 0.9
"""Weight of the previous value in a running mean."""
MEMORY_RARE = 0.5
"""The same weight for measurements that are rare: measuring loads, and answer times of probes."""
LEAST_TOKENS = 48
"""Steps with fewer tokens are ignored, because they do not show the speed of prefill."""


class Rates:
    """Compute time is modelled as `tokens x (a + b x position)` seconds: products with weights take
    constant time per token, and the time of attention grows with the position. Both coefficients
    are fitted by least squares over decaying sums.
    """

    def __init__(
        self,
        tiers: Iterable[TierKind] = (),
        seconds_per_token: float = 1e-3,
        bandwidth: Iterable[float] | None = None,
    ) -> None:
        """`bandwidth` replaces the initial guesses, in bytes per second for each tier."""
        kinds = list(tiers)
        self._bandwidth = list(bandwidth or [GUESSED[kind] for kind in kinds])
        self._learned = [0] * len(kinds)
        """For each tier, number of measured loads in its mean bandwidth."""
        self._remote = [kind is TierKind.REMOTE for kind in kinds]
        self._probe = [0.0] * len(kinds)
        self._a, self._b = seconds_per_token, 0.0
        self._sums = [0.0] * 5

    # Computing ------------------------------------------------------------------------------------

    def observed(self, plan: StepPlan, seconds: float) -> None:
        """Record the duration in seconds of a step."""
        positions = sum(
            length * (start + length // 2)
            for start, length in zip(plan.starts, plan.lengths, strict=True)
        )
        self.computed(len(plan.tokens), positions, seconds)

    def computed(self, tokens: int, positions: int, seconds: float) -> None:
        """Record a step of `tokens` tokens whose positions add up to `positions`."""
        if tokens < LEAST_TOKENS:
            return
        x, y, t = float(tokens), float(positions), seconds
        fresh = (x * x, x * y, y * y, x * t, y * t)
        self._sums = [MEMORY * old + new for old, new in zip(self._sums, fresh, strict=True)]
        xx, xy, yy, xt, yt = self._sums
        determinant = xx * yy - xy * xy
        if determinant > 1e-6 * xx * yy:
            self._b = max((xx * yt - xy * xt) / determinant, 0.0)
        self._a = max((xt - self._b * xy) / xx, 1e-9)

    def compute_seconds(self, first: int, tokens: int) -> float:
        """Seconds to compute the tokens at positions first .. first + tokens - 1."""
        return tokens * (self._a + self._b * (first + tokens / 2))

    # Loading --------------------------------------------------------------------------------------

    def loaded(self, tier: int, size: int, seconds: float) -> None:
        past = self._learned[tier]
        self._learn(tier, size, seconds, min(MEMORY, past / (past + 1)))

    def measured(self, tier: int, size: int, seconds: float) -> None:
        """Record a measuring load of `size` bytes."""
        self._learn(tier, size, seconds, MEMORY_RARE)

    def stored(self, tier: int, size: int, seconds: float) -> None:
        """Record a store of `size` bytes. Until something was loaded from a remote tier, its stores
        show whether the tier is slow.
        """
        if self._remote[tier] and not self._learned[tier] and size:
            per_byte = MEMORY_RARE / self._bandwidth[tier] + (1 - MEMORY_RARE) * seconds / size
            self._bandwidth[tier] = min(1 / per_byte, GUESSED[TierKind.REMOTE])

    def _learn(self, tier: int, size: int, seconds: float, memory: float) -> None:
        if size and seconds > 0:
            rate = size / seconds
            # Average the time per byte, not the rate, so that a slow load has a weight according to
            # its duration.
            self._bandwidth[tier] = 1 / (memory / self._bandwidth[tier] + (1 - memory) / rate)
            self._learned[tier] += 1

    def load_seconds(self, tier: int, size: int) -> float:
        """Seconds that one transfer of `size` bytes takes alone."""
        return size / self._bandwidth[tier]

    def queue_seconds(self, tier: int, size: int) -> float:
        """Seconds that transfers of `size` bytes in total take if several are in flight."""
        return self.load_seconds(tier, size) / (PARALLEL if tier != RAM else 1.0)

    # Lookups --------------------------------------------------------------------------------------

    def probed(self, tier: int, seconds: float) -> None:
        """Record the seconds that a tier took to answer a probe."""
        self._probe[tier] += (1 - MEMORY_RARE) * (seconds - self._probe[tier])

    @property
    def probe_seconds(self) -> float:
        """Usual answer time to a probe of the slowest tier, in seconds; 0 before the
        first answer.
        """
        return max(self._probe)
