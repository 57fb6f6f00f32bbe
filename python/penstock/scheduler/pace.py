"""How many prompt tokens a step takes beside decodes, from the times of the steps before."""

from __future__ import annotations

STRETCH = 2.5
"""Longest step with prompt tokens and decodes, in steps that only decode: the inter-token latency
of running answers while prompts are computed (the stalls of Agrawal et al. 2024, Sarathi-Serve).
"""
FEWEST = 32
"""Prompt tokens that are always allowed: fewer waste what a step costs whatever its tokens."""
FRESH = 0.25
"""Weight of the newest step in both averages."""
COUNTED = 16
"""Prompt tokens from which on a step says what one costs."""


class Pace:
    """Moving averages of what a decode step and a prompt token cost."""

    def __init__(self) -> None:
        self._decode = self._token = 0.0

    def ran(self, decodes: int, prompts: int, seconds: float) -> None:
        """Learn from a step of so many decodes and prompt tokens. Decodes beside prompts are taken
        for as long as those alone.
        """
        if seconds <= 0.0:
            return
        if not prompts:
            self._decode = _mixed(self._decode, seconds)
        elif prompts >= COUNTED and (not decodes or self._decode):
            beside = self._decode if decodes else 0.0
            self._token = _mixed(self._token, max(seconds - beside, 0.0) / prompts)

    def beside_decodes(self, budget: int) -> int:
        """Prompt tokens of a step that also decodes, at most `budget`; all of it while one of the
        costs is unknown.
        """
        if not (self._decode and self._token):
            return budget
        fitting = int((STRETCH - 1.0) * self._decode / self._token)
        return min(budget, max(fitting, FEWEST))


def _mixed(average: float, value: float) -> float:
    return value if not average else average + FRESH * (value - average)
