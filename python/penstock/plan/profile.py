"""Steps of a model measured on this machine: its weights are loaded and a few plans computed.

Four curves and terms make the time of any step: decodes by their number, a chunk by its length,
keys read for each token of context, products for each pair of a prompt token and one before it, and
what a step saves that has both decodes and a chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from penstock.backends import CarryingBackend, load_backend
from penstock.config import EngineConfig, Raw, resolve
from penstock.core import PenstockError, Registration, StepPlan
from penstock.model import ModelInfo, load_model
from penstock.plan.subject import Subject

DECODES = (1, 2, 4, 8, 16, 32)
CHUNKS = (16, 32, 64, 128, 256)
SHORT, LONG = 64, 512
"""Contexts at which decodes are measured."""
MIXED = (8, 32)
"""Decodes and prompt tokens of the step that has both: those that the scheduler puts together."""
REPEATS, MOST_REPEATS = 3, 24
"""Times of a plan, of which the median counts. The first ones after a prompt are slower, by up to a
half for a small model: its weights come back into the cache.
"""
SPAN = 0.3
"""Seconds after which a plan is not repeated any more."""
TIMEOUT = 120.0

Curve = tuple[tuple[int, float], ...]
"""Seconds by count, ascending."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of steps by interpolation between measured ones."""

    decodes: Curve
    """At a context of `SHORT`."""
    chunks: Curve
    """Computing a prompt's first tokens."""
    key: float
    """Seconds of one token of context of one decode."""
    pair: float
    """Seconds of a pair of a prompt token and a token before its chunk."""
    saved: float
    """By a step with decodes and a chunk, at most what its decodes alone take."""

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """As `Steps` has it."""
        alone = _at(self.decodes, decodes) + decodes * max(context - SHORT, 0.0) * self.key
        chunk = _at(self.chunks, prefill) + pairs * self.pair
        return alone + chunk - (min(self.saved, alone, chunk) if decodes and prefill else 0.0)


def _at(curve: Curve, count: float) -> float:
    """Between two measured counts by a line, below the first in proportion to it at half its cost,
    above the last as the last two are apart.
    """
    if count <= 0:
        return 0.0
    if count < curve[0][0]:
        return curve[0][1] * (0.5 + 0.5 * count / curve[0][0])
    if len(curve) == 1:
        return curve[0][1]
    at = min(max(bisect_right([each for each, _ in curve], count), 1), len(curve) - 1)
    (low, first), (high, second) = curve[at - 1], curve[at]
    return first + (count - low) * (second - first) / (high - low)


def measure(subject: Subject) -> Profile:
    """Load the model's weights and measure. PenstockError where there are none, or no backend runs
    the model.
    """
    if subject.path is None or subject.refused:
        raise PenstockError(
            f"--measure needs weights that a backend here runs: {subject.refused or 'none found'}"
        )
    info = load_model(subject.path)
    config = resolve(
        {"max_num_seqs": Raw("--measure", ("64",))}, str(subject.path), subject.name
    ).engine
    backend = load_backend(config, info)
    try:
        return _Bench(backend, config, info).profile()
    finally:
        backend.close()


class _Bench:
    """Plans on a backend, one slot for each sequence with blocks of its own."""

    def __init__(self, backend: CarryingBackend, config: EngineConfig, info: ModelInfo) -> None:
        self._backend = backend
        self._groups = backend.kv_spec().groups
        self._size = config.cache.block_size
        self._longest = min(LONG + CHUNKS[-1] + REPEATS + 1, info.spec.max_position)
        self._blocks = -(-self._longest // self._size)
        self._vocab = info.spec.vocab
        self._step = 0
        most = sum(group.block_bytes for group in self._groups) * self._blocks
        self._slots = max(min(DECODES[-1], backend.free_memory() // 2 // max(most, 1)), 1)
        backend.allocate([self._blocks * self._slots] * len(self._groups))

    def profile(self) -> Profile:
        chunk = longest_chunk(self._longest)
        chunks = tuple(
            (count, self._median(partial(self._prompt, 0, 0, count)))
            for count in CHUNKS
            if count <= chunk
        )
        late = min(LONG, self._longest - chunk - 1)
        self._fill(0, late)
        first, behind = self._medians(
            partial(self._prompt, self._slots - 1, 0, chunk),
            lambda: self._prompt(0, late, chunk, new=False),
        )
        pair = max(behind - first, 0.0) / (chunk * max(late, 1))
        counts = [count for count in DECODES if count <= self._slots]
        short = min(SHORT, self._longest // 2)
        decodes = tuple((count, self._decodes(count, short)) for count in counts)
        many = min(MIXED[0], counts[-1])
        far = min(LONG, self._longest - 2)
        for slot in range(many):
            self._fill(slot, far)
        near, distant = self._medians(
            partial(self._decode, many, short), partial(self._decode, many, far)
        )
        key = max(distant - near, 0.0) / (many * max(far - short, 1))
        return Profile(decodes, chunks, key, pair, self._saved(many, short, chunk))

    def _saved(self, many: int, short: int, chunk: int) -> float:
        """What one step of both takes less than two."""
        prefill = min(MIXED[1], chunk)
        if many >= self._slots:
            return 0.0
        alone, prompt, both = self._medians(
            partial(self._decode, many, short),
            partial(self._prompt, many, 0, prefill),
            partial(self._both, many, short, prefill),
        )
        return max(alone + prompt - both, 0.0)

    def _decodes(self, count: int, context: int) -> float:
        for slot in range(count):
            self._fill(slot, context)
        return self._median(partial(self._decode, count, context))

    def _decode(self, count: int, context: int) -> float:
        return self._rows([(slot, context, 1) for slot in range(count)])

    def _fill(self, slot: int, tokens: int) -> None:
        for start in range(0, tokens, CHUNKS[-1]):
            self._prompt(slot, start, min(CHUNKS[-1], tokens - start), new=start == 0)

    def _both(self, count: int, context: int, prefill: int) -> float:
        rows = [(slot, context, 1) for slot in range(count)]
        return self._rows([*rows, (count, 0, prefill)], new={count})

    def _prompt(self, slot: int, start: int, count: int, *, new: bool = True) -> float:
        return self._rows([(slot, start, count)], new={slot} if new else set())

    def _rows(self, rows: Sequence[tuple[int, int, int]], new: set[int] | None = None) -> float:
        """Seconds of a plan of (slot, start, tokens). `new` slots get the table of all blocks."""
        from penstock._native import encode_sampling

        new, self._step = new or set(), self._step + 1
        added, offsets = array("i"), array("i", (0,))
        kept = array("i")
        for slot, _, _ in rows:
            for _group in self._groups:
                fresh = slot in new
                kept.append(0 if fresh else self._blocks)
                if fresh:
                    added.extend(range(slot * self._blocks, (slot + 1) * self._blocks))
                offsets.append(len(added))
        spans = (range(start, start + count) for _, start, count in rows)
        tokens = array("i", (1 + at % (self._vocab - 1) for span in spans for at in span))
        plan = StepPlan(
            self._step,
            [Registration(slot, encode_sampling()) for slot in sorted(new)],
            slots=array("i", (slot for slot, _, _ in rows)),
            starts=array("i", (start for _, start, _ in rows)),
            lengths=array("i", (count for _, _, count in rows)),
            sample=array("b", [1] * len(rows)),
            tokens=tokens,
            kept=kept,
            added_offsets=offsets,
            added=added,
        )
        return self._backend.submit(plan).result(TIMEOUT).seconds

    def _median(self, run: Callable[[], float]) -> float:
        return self._medians(run)[0]

    @staticmethod
    def _medians(*runs: Callable[[], float]) -> list[float]:
        """Median of each run. They take turns, so that what else the machine does slows all."""
        for run in runs:
            run()
        times: list[list[float]] = []
        while len(times) < REPEATS or (sum(map(sum, times)) < SPAN and len(times) < MOST_REPEATS):
            times.append([run() for run in runs])
        return [median(each) for each in zip(*times, strict=True)]


def longest_chunk(longest: int) -> int:
    """The longest measured chunk of a model with so many positions."""
    return max(count for count in CHUNKS if count <= max(longest // 2, CHUNKS[0]))
