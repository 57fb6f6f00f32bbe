"""Cases of the bound of mixed steps, by a second statement of its rule: in fractions, over the
whole history. The scheduler and the simulated engine are held to them.

`python -m tests.scheduler.mixed_cases` writes them anew.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from random import Random

PATH = Path(__file__).parent.parent / "fixtures" / "mixed-steps.json"
RUNS, STEPS = 24, 40

Case = tuple[int, int, int, int, int, int]
"""Decodes, prompt tokens and nanoseconds of a step; then decodes to ask for, budget, answer."""


class History:
    """Every number is an average in which the newest value counts a quarter."""

    def __init__(self) -> None:
        self.alone: list[Fraction] = []
        self.beside: list[Fraction] = []
        self.measured: dict[int, list[Fraction]] = {}
        self.guessed: dict[int, list[Fraction]] = {}

    def note(self, decodes: int, prompts: int, nanos: int) -> None:
        size = len(f"{decodes:b}") if decodes else 0
        if nanos == 0 or 0 < prompts < 16:
            return
        if prompts == 0:
            self.measured.setdefault(size, []).append(Fraction(nanos))
        elif decodes == 0:
            self.alone.append(Fraction(nanos, prompts))
        elif size in self.measured:
            rest = max(nanos - average(self.measured[size]), Fraction(0))
            self.beside.append(rest / prompts)
        elif token := average(self.beside) or average(self.alone):
            rest = max(nanos - token * prompts, Fraction(0))
            self.guessed.setdefault(size, []).append(rest)

    def answer(self, decodes: int, budget: int) -> int:
        token = average(self.beside) or average(self.alone)
        steps = [
            average(self.measured.get(size, [])) or average(self.guessed.get(size, []))
            for size in range(1, len(f"{decodes:b}") + 1 if decodes else 1)
        ]
        step = next((step for step in reversed(steps) if step), Fraction(0))
        if not token or not step:
            return budget
        fewest = 32
        if self.alone:
            dearer = average(self.beside) / average(self.alone)
            fewest = min(max(int(32 * dearer), 32), 64)
        return min(budget, max(int(2 * step / token), fewest))


def average(values: list[Fraction]) -> Fraction:
    """A zero is as if nothing was known before."""
    result = Fraction(0)
    for value in values:
        result = result * 3 / 4 + value / 4 if result else value
    return result


def draw_run(seed: int) -> list[Case]:
    """Steps of one engine: costs of decodes and tokens are drawn, and how dear few tokens are."""
    draw, history, cases = Random(seed), History(), []
    decode, token = draw.randint(500_000, 20_000_000), draw.randint(20_000, 900_000)
    experts = draw.choice([0, 3_000_000, 40_000_000, 400_000_000])
    for _ in range(STEPS):
        decodes = draw.choice([0, 0, 1, 2, 3, 8, 40])
        few, many = [0, 0, 2, 15, 16, 32, 60, 200], [16, 200, 256, 512]
        prompts = draw.choice(few if decodes else many)
        nanos = (decode + decodes * 90_001 if decodes else 0) + token * prompts
        nanos += experts if prompts else 0
        nanos = nanos * draw.randint(900, 1100) // 1000 if draw.random() < 0.97 else 0
        history.note(decodes, prompts, nanos)
        asked, budget = draw.choice([1, 1, 3, 9, 64]), draw.choice([20, 64, 256, 8192])
        cases.append((decodes, prompts, nanos, asked, budget, history.answer(asked, budget)))
    return cases


def draw_all() -> list[list[Case]]:
    return [draw_run(seed) for seed in range(RUNS)]


if __name__ == "__main__":
    runs = ",\n".join(json.dumps(run, separators=(",", ":")) for run in draw_all())
    PATH.write_text(f"[\n{runs}\n]\n")
