"""Measures how long a model's steps take on this machine: loads the weights and computes sample
plans, then starts a server to measure its overhead (`serving.py`).

The time of any step is composed of curves and terms: decodes by number, a chunk by length, decodes
added to a chunk, KV reads for each token of context, and attention for each pair of a prompt token
and an earlier one. Decode steps after a prompt are slower; their additional time decays from step
to step.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from penstock.backends import CarryingBackend, load_backend
from penstock.config import EngineConfig, Raw, resolve
from penstock.core import Allocation, PenstockError, Registration, StepPlan
from penstock.model import ModelInfo, load_model
from penstock_lab.bench.compare.processes import Meter
from penstock_ops.plan.serving import NOTHING, REPEATS, Extra, measure_extra
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.time_limit import SECONDS, TimeLimit

DECODES = (1, 2, 4, 8, 16, 32)
CHUNKS = (16, 32, 64, 128, 256)
SHORT, LONG = 64, 512
"""Context lengths in tokens at which decodes are measured."""
FAR = 8
"""Number of decodes in the step that is measured with two context lengths."""
BESIDE = (1, 4, 8)
"""Numbers of decodes that are measured in a step with a chunk, and in the steps after one."""
MIXED = 32
"""Number of prompt tokens in a step with decodes and a chunk: the number that the scheduler
combines with decodes.
"""
ROUNDS = 3
"""Number of times that the whole measurement is repeated, if there is time. Medians are used, so
that a slowdown of a few seconds has no effect.
"""
STEPS = 0.75
"""Part of the time limit for steps; the rest is for streams of a server."""
FEWEST_COUNTS = 2
"""Number of points of each curve that are measured even if the time limit has passed."""
BUSY = 0.1
"""Share of the machine's CPU time (0 to 1) used by other programs from which the user is warned."""
MOST_REPEATS = 8
"""Maximum number of times that a plan is timed in a round, after a first run that is discarded. The
median is used.
"""
SETTLING = 24
"""Maximum number of decode steps after a prompt until step times settle: the weights of a small
model must first return to the CPU caches. These steps are measured separately, as the after-effect
of a prompt.
"""
FEWEST = 4
"""Minimum number of such steps to measure, if a step is slow."""
SPAN = 0.1
"""In one round, a plan is not repeated once its runs have taken this many seconds."""
TIMEOUT = 120.0

Curve = tuple[tuple[int, float], ...]
"""Points (count, seconds), ascending."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured step times; those between two measured counts are interpolated."""

    decodes: Curve
    """Seconds of a step by number of decodes, each with a context of SHORT tokens."""
    chunks: Curve
    """Seconds of a step with the first tokens of a prompt, by number of tokens."""
    key: float
    """Seconds that each token of context beyond SHORT adds to a decode."""
    pair: float
    """Seconds for each pair of a prompt token and a token before its chunk."""
    beside: Curve = ()
    """Seconds that decodes add to a step with a chunk, by number of decodes. If empty, decodes add
    as much as they take alone.
    """
    after: Curve = ()
    """Additional seconds of the first decode step after a prompt, by number of decodes."""
    remains: float = 0.0
    """Factor (0 to 1) by which these additional seconds shrink with each further step."""
    extra: Extra = NOTHING
    """Seconds that a server adds to steps with decodes."""
    rounds: int = ROUNDS
    """Number of rounds that were measured."""

    @property
    def extent(self) -> str:
        """How much was measured, as text for the user."""
        return (
            f"measured here: {self.rounds} of {ROUNDS} rounds of steps, with up to "
            f"{self.decodes[-1][0]} decodes and chunks of up to {self.chunks[-1][0]} tokens"
            + (f", and {self.extra.repeats} of {REPEATS} of streams" if self.extra.repeats else "")
        )

    def seconds(
        self, decodes: float, context: float, prefill: float = 0.0, pairs: float = 0.0
    ) -> float:
        """Seconds of a step; the arguments are explained at `speed.Steps.seconds`."""
        keys = decodes * max(context - SHORT, 0.0) * self.key
        chunk = _at(self.chunks, prefill) + pairs * self.pair
        extra = self.extra.seconds(decodes)
        if not (decodes and prefill and self.beside):
            return _at(self.decodes, decodes) + keys + chunk + extra
        together = chunk + _at(self.beside, decodes)
        return max(together, _at(self.decodes, decodes)) + keys + extra

    def settling(self, decodes: float, since: float) -> float:
        """Additional seconds of a decode step after a prompt; see `speed.Steps.settling`."""
        return max(_at(self.after, decodes), 0.0) * math.pow(self.remains, since)


def _at(curve: Curve, count: float) -> float:
    """Seconds for `count` on a curve, by linear interpolation. Below the first measured count, half
    of its time is fixed and half proportional. Above the last count, the last segment is
    extrapolated.
    """
    if count <= 0 or not curve:
        return 0.0
    if count < curve[0][0]:
        return curve[0][1] * (0.5 + 0.5 * count / curve[0][0])
    if len(curve) == 1:
        return curve[0][1]
    at = min(max(bisect_right([each for each, _ in curve], count), 1), len(curve) - 1)
    (low, first), (high, second) = curve[at - 1], curve[at]
    return first + (count - low) * (second - first) / (high - low)


def measure(
    subject: Subject, said: Callable[[str], None] = lambda _: None, seconds: float = SECONDS
) -> Profile:
    """Load the model and measure its steps, then serve it and measure the server's overhead. `said`
    is called with lines about progress. After `seconds`, which exclude loading, only what every
    profile needs is still measured.

    Raises PenstockError if there are no weights, no backend runs the model, or no server starts.
    """
    profile = measure_steps(subject, said, STEPS * seconds)
    extra = measure_extra(subject, profile.seconds, said, (1 - STEPS) * seconds)
    return replace(profile, extra=extra)


def measure_steps(
    subject: Subject, said: Callable[[str], None] = lambda _: None, seconds: float = SECONDS
) -> Profile:
    """Measure steps without a server. Raises the errors of `measure` that do not concern the
    server.
    """
    if subject.path is None or subject.refused:
        raise PenstockError(
            f"--measure needs weights that a backend here runs: {subject.refused or 'none found'}"
        )
    said("loading the weights")
    info = load_model(subject.path)
    config = resolve({"device": Raw("--measure", ("cpu",))}, str(subject.path), subject.name).engine
    backend = load_backend(config, info)
    try:
        meter = Meter()
        profile = _Bench(backend, config, info, TimeLimit(seconds, said)).profile()
        if (share := meter.read()["foreign_share"]) > BUSY:
            said(f"other programs used {share:.0%} of the CPU time: steps are slower by that")
        return profile
    finally:
        backend.close()


class _Bench:
    """Runs sample plans on a backend. Each sequence has a slot and KV blocks of its own."""

    def __init__(
        self,
        backend: CarryingBackend,
        config: EngineConfig,
        info: ModelInfo,
        limit: TimeLimit,
    ) -> None:
        self._backend, self._limit = backend, limit
        self._groups = backend.kv_spec().groups
        self._size = config.cache.block_size
        self._longest = min(LONG + CHUNKS[-1] + 1, info.spec.max_position)
        self._blocks = -(-self._longest // self._size)
        self._vocab = info.spec.vocab
        self._step = 0
        self._rounds: list[Profile] = []
        self._filled: dict[int, int] = {}
        """Number of tokens at the start of a slot whose KV is computed, by slot."""
        most = sum(group.block_bytes for group in self._groups) * self._blocks
        self._slots = max(min(DECODES[-1], backend.free_memory() // 2 // max(most, 1)), 1)
        backend.allocate(Allocation((self._blocks * self._slots,) * len(self._groups)))

    def profile(self) -> Profile:
        while (done := len(self._rounds)) < ROUNDS and self._limit.has_time_after(done):
            self._rounds.append(self._round(f"timing steps, round {done + 1} of {ROUNDS}"))
        return replace(medians(self._rounds), rounds=len(self._rounds))

    def _round(self, name: str) -> Profile:
        longest = longest_chunk(self._longest)
        chunks = self._curve(
            f"{name}: chunks",
            [count for count in CHUNKS if count <= longest],
            lambda count: self._median(partial(self._prompt, 0, 0, count)),
        )
        chunk = chunks[-1][0]
        pair = self._pair(chunk)
        short = min(SHORT, self._longest // 2)
        decodes = self._curve(
            f"{name}: decodes",
            [count for count in DECODES if count <= self._slots],
            lambda count: self._decodes(count, short),
        )
        key = self._key(min(FAR, decodes[-1][0]), short)
        few = [count for count in BESIDE if count < self._slots]
        prefill = min(MIXED, chunk)
        beside = self._curve(
            f"{name}: decodes with a chunk",
            few,
            lambda count: self._beside(count, short, prefill),
        )
        few = [count for count, _ in beside]
        settling = [self._settling(count, short, chunk) for count in few]
        after, remains = settled(few, settling)
        return Profile(decodes, chunks, key, pair, beside, after, remains)

    def _curve(self, name: str, counts: Sequence[int], run: Callable[[int], float]) -> Curve:
        """Seconds by count. The first round leaves out the highest counts after the time limit;
        further rounds measure all, so that there are medians of each.
        """
        points: list[tuple[int, float]] = []
        for count in counts:
            if not self._rounds and len(points) >= FEWEST_COUNTS and self._limit.is_over:
                break
            self._limit.report(f"{name} ({count})")
            points.append((count, run(count)))
        return tuple(points)

    def _pair(self, chunk: int) -> float:
        """Seconds for each pair of a prompt token and a token before its chunk. Compares a first
        chunk with one after other chunks.
        """
        late = min(LONG, self._longest - chunk - 1)
        self._fill(0, late)
        first, behind = self._medians(
            partial(self._prompt, self._slots - 1, 0, chunk),
            lambda: self._prompt(0, late, chunk, new=False),
        )
        return max(behind - first, 0.0) / (chunk * max(late, 1))

    def _key(self, many: int, short: int) -> float:
        """Seconds that each token of context adds to a decode. Compares decodes with long and short
        contexts.
        """
        far = min(LONG, self._longest - 2)
        for slot in range(many):
            self._fill(slot, far)
        near, distant = (partial(self._decode, many, context) for context in (short, far))
        self._settle(near)
        first, second = self._medians(near, distant)
        return max(second - first, 0.0) / (many * max(far - short, 1))

    def _beside(self, count: int, short: int, prefill: int) -> float:
        """Seconds that `count` decodes add to a step with a chunk of `prefill` tokens."""
        for slot in range(count):
            self._fill(slot, short)
        prompt, both = self._medians(
            partial(self._prompt, count, 0, prefill), partial(self._both, count, short, prefill)
        )
        return max(both - prompt, 0.0)

    def _settling(self, count: int, short: int, chunk: int) -> list[float]:
        """Seconds of each decode step of `count` sequences after a prompt of `chunk` tokens."""
        for slot in range(count):
            self._fill(slot, short)
        self._prompt(count, 0, chunk)
        times: list[float] = []
        while len(times) < SETTLING and (len(times) < FEWEST or sum(times) < SETTLING * SPAN):
            times.append(self._decode(count, short))
        return times

    def _decodes(self, count: int, context: int) -> float:
        for slot in range(count):
            self._fill(slot, context)
        decode = partial(self._decode, count, context)
        self._settle(decode)
        return self._median(decode)

    @staticmethod
    def _settle(run: Callable[[], float]) -> None:
        """Repeat `run` until the after-effect of a prompt has decayed, or SPAN seconds have
        passed.
        """
        times: list[float] = []
        while len(times) < SETTLING and sum(times) < SPAN:
            times.append(run())

    def _decode(self, count: int, context: int) -> float:
        return self._rows([(slot, context, 1) for slot in range(count)])

    def _fill(self, slot: int, tokens: int) -> None:
        """Compute the first `tokens` tokens of a slot, unless an earlier call has. Every plan gives
        a position the same token, so later plans leave this KV as it is.
        """
        for start in range(self._filled.get(slot, 0), tokens, CHUNKS[-1]):
            self._prompt(slot, start, min(CHUNKS[-1], tokens - start), new=start == 0)
            self._filled[slot] = min(start + CHUNKS[-1], tokens)

    def _both(self, count: int, context: int, prefill: int) -> float:
        rows = [(slot, context, 1) for slot in range(count)]
        return self._rows([*rows, (count, 0, prefill)], new={count})

    def _prompt(self, slot: int, start: int, count: int, *, new: bool = True) -> float:
        return self._rows([(slot, start, count)], new={slot} if new else set())

    def _rows(self, rows: Sequence[tuple[int, int, int]], new: set[int] | None = None) -> float:
        """Compute a plan with `rows` of (slot, start, tokens); returns its seconds. Slots in `new`
        are registered and get a complete block table.
        """
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
        """Median seconds of each of `runs`. They alternate, so that a disturbance slows all of them
        equally.
        """
        for run in runs:
            run()
        times: list[list[float]] = []
        while not times or (sum(map(sum, times)) < SPAN and len(times) < MOST_REPEATS):
            times.append([run() for run in runs])
        return [median(each) for each in zip(*times, strict=True)]


def longest_chunk(longest: int) -> int:
    """The longest chunk to measure, in tokens, for a model with `longest` positions."""
    return max(count for count in CHUNKS if count <= max(longest // 2, CHUNKS[0]))


def medians(rounds: Sequence[Profile]) -> Profile:
    """A profile in which each number is the median over `rounds`."""

    def curve(name: str) -> Curve:
        points = zip(*(getattr(each, name) for each in rounds), strict=True)
        return tuple((each[0][0], median(seconds for _, seconds in each)) for each in points)

    def number(name: str) -> float:
        return float(median(getattr(each, name) for each in rounds))

    return Profile(
        decodes=curve("decodes"),
        chunks=curve("chunks"),
        key=number("key"),
        pair=number("pair"),
        beside=curve("beside"),
        after=curve("after"),
        remains=number("remains"),
    )


def settled(counts: Sequence[int], times: Sequence[Sequence[float]]) -> tuple[Curve, float]:
    """The `after` and `remains` of a profile. `times` has the seconds of the decode steps after a
    prompt, for each of `counts` decodes. A step's additional time is the excess over the mean of
    the last quarter of the steps. The model assumes that it decays geometrically.
    """
    firsts, sums = [], []
    for each in times:
        quiet = fmean(each[-max(len(each) // 4, 1) :])
        firsts.append(max(each[0] - quiet, 0.0))
        sums.append(max(sum(each) - len(each) * quiet, firsts[-1]))
    remains = 1.0 - sum(firsts) / sum(sums) if sum(sums) else 0.0
    return tuple(zip(counts, firsts, strict=True)), remains
