"""Bound of mixed steps: how many prompt tokens a step takes beside decodes, from the times of the
steps before.
"""

from __future__ import annotations

STRETCH = 3.0
"""Longest step with prompt tokens and decodes, in steps that only decode: the inter-token latency
of running answers while prompts are computed (the stalls of Agrawal et al. 2024, Sarathi-Serve).
"""
FEWEST = 32
"""Prompt tokens that are always allowed: fewer waste what a step costs whatever its tokens."""
DEAREST = 2.0
"""Bound of the factor on `FEWEST` where a token costs more beside decodes than in a step of prompts
alone: few tokens read nearly all experts of a mixture.
"""
FRESH = 0.25
"""Weight of the newest step in all averages."""
COUNTED = 16
"""Prompt tokens from which on a step says what one costs."""


class MixedSteps:
    """Moving averages of what a prompt token costs, and a decode step of 1, 2 to 3, 4 to 7, ...
    sequences.

    Under load there may be no step without prompts. What a step of so many decodes takes is then
    guessed from a mixed one, less its prompt tokens.
    """

    def __init__(self) -> None:
        self._alone = self._beside = 0.0
        """Seconds of a prompt token in a step of prompts alone, and beside decodes."""
        self._decodes: dict[int, float] = {}
        """Seconds by the bit length of the number of decodes."""
        self._guesses: dict[int, float] = {}

    def ran(self, decodes: int, prompts: int, seconds: float) -> None:
        """Learn from a step of so many decodes and prompt tokens."""
        size = decodes.bit_length()
        if seconds <= 0.0 or 0 < prompts < COUNTED:
            return
        if not prompts:
            self._decodes[size] = _average(self._decodes.get(size), seconds)
        elif not decodes:
            self._alone = _average(self._alone, seconds / prompts)
        elif size in self._decodes:
            rest = max(seconds - self._decodes[size], 0.0)
            self._beside = _average(self._beside, rest / prompts)
        elif self._token:
            rest = max(seconds - self._token * prompts, 0.0)
            self._guesses[size] = _average(self._guesses.get(size), rest)

    def prompt_budget(self, decodes: int, budget: int) -> int:
        """Prompt tokens of a step with so many decodes, at most `budget`; all of it while one of
        the costs is unknown.
        """
        step = self._decode_step(decodes.bit_length())
        if not (step and self._token):
            return budget
        fitting = int((STRETCH - 1.0) * step / self._token)
        return min(budget, max(fitting, self._fewest()))

    @property
    def _token(self) -> float:
        return self._beside or self._alone

    def _fewest(self) -> int:
        dearer = self._beside / self._alone if self._alone else 1.0
        return int(FEWEST * min(max(dearer, 1.0), DEAREST))

    def _decode_step(self, size: int) -> float:
        """Seconds of a decode step: as measured or guessed, or those of the next smaller one."""
        for smaller in range(size, 0, -1):
            if seconds := self._decodes.get(smaller) or self._guesses.get(smaller):
                return seconds
        return 0.0


def _average(average: float | None, value: float) -> float:
    return average + FRESH * (value - average) if average else value
