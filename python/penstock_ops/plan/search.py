"""Finds the deployment that meets the latency goal on the fewest devices, by simulating candidates
in virtual time.

Candidates are tried in order of their number of devices. If one fails, it is tried again later with
one replica more, so the first that meets the goal needs the fewest devices. A number of replicas is
skipped only if a lower bound shows that it cannot meet the goal.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from penstock.config import ON_GPUS
from penstock.core import InvalidValueError
from penstock_lab.bench.slo import Slo
from penstock_ops.plan.calibration import Band
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Engine, Load
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.lines import human
from penstock_ops.plan.memory import Memory, sized
from penstock_ops.plan.prefixes import Prefixes, Store
from penstock_ops.plan.speed import Constants, Steps, prompt_seconds, step_model
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.tiers import Tier, keeps, store
from penstock_ops.plan.virtual import Arrival, Limits, Outcome, Replica, StepTime

CHUNKS = (2048, ON_GPUS.tokens)
"""Numbers of tokens in a step (token budgets) to try."""
STAGES = 16
"""Maximum number of pipeline stages to try. Every token passes through all stages, so more stages
make answers slow.
"""
NEVER = 1 << 30
"""A number of replicas that is never available: no number would meet the bounds."""
SPEED = "p99_tpot_ms"
"""The statistic to choose by if the goal has no bounds."""
SLACK = 0.9
"""Factor that makes a bound based on averages less strict: a percentile over few requests may be
below the average.
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a deployment: serve these arrivals within these latency bounds."""

    arrivals: tuple[Arrival, ...]
    """Requests to all replicas together, in order of time. They are distributed round-robin."""
    slo: tuple[Slo, ...]

    @property
    def rate(self) -> float:
        """Average requests per second to all replicas together."""
        span = self.arrivals[-1].at - self.arrivals[0].at
        return (len(self.arrivals) - 1) / span if span > 0 else 0.0

    @property
    def computed(self) -> float:
        """Average number of prompt tokens that must be computed for a request, if one replica
        serves all of them and its prefix cache never evicts.
        """
        seen: set[int] = set()
        total = 0
        for arrival in self.arrivals:
            known = next((n for n, name in enumerate(arrival.names) if name not in seen), None)
            known = len(arrival.names) if known is None else known
            total += max(arrival.isl - known * arrival.block, 1)
            seen.update(arrival.names)
        return total / len(self.arrivals)

    @property
    def shares(self) -> bool:
        """Whether the arrivals name their prompts' blocks, so that prompts can share prefixes."""
        return any(arrival.names for arrival in self.arrivals)

    @property
    def longest(self) -> int:
        """Input plus output tokens of the longest request."""
        return max(arrival.isl + arrival.osl for arrival in self.arrivals)


@dataclass(frozen=True, slots=True)
class Speed:
    """How step times are predicted, and with which error."""

    constants: Constants
    band: Band
    source: str
    profile: Steps | None = None
    """Steps of this model that were measured on this target; they replace the constants."""
    factor: float = 1.0
    """Factor for predicted step times, from measured deployments; 1 without any."""
    waiting: float | None = None
    """Part of the TTFT in seconds that is spent outside steps; None if it is unknown."""


Order = tuple[int, int, Cut, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A deployment that fits in memory; one replica of it."""

    cut: Cut
    chunk: int
    sequences: int
    memory: Memory
    model: Steps
    paced: bool
    tiers: tuple[Tier, ...] = ()
    stores: tuple[Store, ...] | None = None
    """The replica's share of each KV tier; None if prefixes are not reused, so that every prompt is
    computed completely.
    """

    def order(self) -> Order:
        return len(self.tiers), self.cut.size, self.cut, self.chunk


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with a number of replicas, and its simulation with the slowest step times of the
    error band.
    """

    candidate: Candidate
    replicas: int
    outcome: Outcome
    worst: float
    """Largest ratio of a statistic to its bound; above 1 a bound is missed."""
    tightest: str
    """The statistic with this ratio, such as `p99_tpot_ms`; empty without bounds."""
    failed: str
    """Why the trial misses the goal; empty if it meets the goal."""

    @property
    def devices(self) -> int:
        return self.candidate.cut.size * self.replicas

    @property
    def tightness(self) -> float:
        """`worst` or, without bounds, a measure of speed; the smaller, the better."""
        return self.worst if self.tightest else statistic(self.outcome, SPEED)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: the chosen trial, the other trials, and partitions that do not fit."""

    choice: Trial | None
    lost: tuple[Trial, ...]
    misfits: tuple[tuple[str, str], ...]
    """(partition, reason) for each partition that does not fit, the one with the fewest devices
    first.
    """
    simulated: int


@dataclass(frozen=True, slots=True)
class Question:
    """What to search: a model, the hardware to choose from, and the goal."""

    subject: Subject
    target: Target
    rules: Engine
    load: Load
    goal: Goal
    speed: Speed
    kv: str = "bf16"
    tiers: tuple[Tier, ...] = ()
    """KV tiers that may be used. The search tries none, the first, the first two, and so on."""
    cuts: Sequence[Cut] = ()
    """Partitions to choose from; empty for all that the engine supports."""
    replicas: int = 0
    """Requested number of replicas; 0 for the fewest that meet the goal."""
    usual: bool = False
    """Whether only powers of two and whole nodes are tried, if `cuts` is empty."""

    @property
    def allowed(self) -> Sequence[Cut]:
        if self.cuts:
            return self.cuts
        found = _generated(self.subject, self.target, self.rules)
        return [cut for cut in found if not self.usual or cut.is_usual(self.target.per_node)]


def search(question: Question) -> SearchResult:
    """Find the deployment that meets the goal on the fewest devices of the target."""
    target, goal, speed = question.target, question.goal, question.speed
    question = replace(question, cuts=question.allowed)
    sizes = {str(cut): cut.size for cut in question.cuts}
    fitting, misfits = candidates(question)
    queue: list[tuple[int, Order, int]] = []
    computed = goal.computed
    at = {candidate.order(): candidate for candidate in fitting}
    for candidate in fitting:
        first = question.replicas or _fewest(candidate, goal, speed, computed)
        if first * candidate.cut.size <= target.count:
            taken = target.taken(first * candidate.cut.size)
            queue.append((taken, candidate.order(), first))
        else:
            misfits.append((str(candidate.cut), _too_many(first, bool(question.replicas))))
    heapq.heapify(queue)
    held: list[Trial] = []
    lost: list[Trial] = []
    least = math.inf
    while queue and queue[0][0] <= least:
        taken, order, replicas = heapq.heappop(queue)
        if held and order[0] > len(held[0].candidate.tiers):
            break  # On equally many devices, more tiers are never preferred.
        trial = judge(at[order], replicas, goal, speed)
        (lost if trial.failed else held).append(trial)
        least = least if trial.failed else min(least, taken)
        more = (replicas + 1) * at[order].cut.size
        if trial.failed and more <= target.count and not question.replicas:
            heapq.heappush(queue, (target.taken(more), order, replicas + 1))
    held.sort(key=_preference)
    choice = held[0] if held else None
    misfits.sort(key=lambda misfit: sizes.get(misfit[0], 0))
    return SearchResult(choice, (*held[1:], *lost), tuple(misfits), len(held) + len(lost))


def _too_many(replicas: int, asked: bool) -> str:
    if asked:
        return f"{replicas} replicas of it need more devices"
    if replicas == NEVER:
        return "even one request alone misses the limit"
    return f"needs at least {replicas} replicas for the load"


def _preference(trial: Trial) -> tuple[int, float, int, Order]:
    """Sort key among deployments on equally many devices, the best first: fewest tiers, then the
    largest margin to the latency bounds or, without bounds, the fastest.
    """
    candidate = trial.candidate
    return len(candidate.tiers), trial.tightness, trial.devices, candidate.order()


def judge(candidate: Candidate, replicas: int, goal: Goal, speed: Speed) -> Trial:
    """Simulate one replica with its share of the arrivals and the slowest step times of the error
    band. Compare the result with the goal.
    """
    outcome = simulate(candidate, replicas, goal, speed.band.high * speed.factor)
    values = {slo: judged(outcome, slo.key, speed) for slo in goal.slo}
    ratios = {slo: value / slo.limit for slo, value in values.items()}
    tightest = max(ratios, key=lambda slo: ratios[slo], default=None)
    failed = ", ".join(
        f"{spoken(slo.key)} {value:,.0f} ms, limit {slo.limit:,g}"
        for slo, value in values.items()
        if value > slo.limit
    )
    if not failed and _grows(outcome):
        failed = "the queue grows: requests come faster than they are served"
    worst, key = (ratios[tightest], tightest.key) if tightest else (0.0, "")
    return Trial(candidate, replicas, outcome, worst, key, failed)


def spoken(key: str) -> str:
    """A statistic's name in words: `P99 TPOT` for `p99_tpot_ms`."""
    kind, metric, _ = key.split("_")
    return f"{kind.replace('p', 'P')} {metric.upper()}"


def simulate(candidate: Candidate, replicas: int, goal: Goal, factor: float) -> Outcome:
    """Simulate the first of `replicas` replicas. `factor` multiplies the times of steps and
    loads.
    """
    limits = Limits(
        candidate.sequences,
        candidate.chunk,
        candidate.memory.concurrency(goal.longest) * goal.longest,
        candidate.paced,
    )
    prefixes = None
    if candidate.stores is not None:
        slower = (replace(each, seconds=factor * each.seconds) for each in candidate.stores)
        prefixes = Prefixes(tuple(slower))
    step, model = _slower(candidate.model, factor), candidate.model

    def settling(decodes: float, since: float) -> float:
        return factor * model.settling(decodes, since)

    return Replica(step, limits, prefixes, settling).run(goal.arrivals[::replicas])


def statistic(outcome: Outcome, key: str) -> float:
    """A statistic of a simulation in milliseconds, such as `p99_tpot_ms` or `mean_ttft_ms`."""
    kind, metric, _ = key.split("_")
    # The simulation has times of requests, not of single tokens.
    metric = "tpot" if metric == "itl" else metric
    if kind in ("mean", "std"):
        times = outcome.times(metric) or [0.0]
        mean = fmean(times)
        return 1e3 * (mean if kind == "mean" or math.isinf(mean) else pstdev(times))
    share = 0.5 if kind == "median" else float(kind[1:]) / 100
    return 1e3 * outcome.percentile(metric, share)


def judged(outcome: Outcome, key: str, speed: Speed) -> float:
    """A statistic in milliseconds as clients see it: plus the part of TTFT outside steps, if that
    is known.
    """
    is_shifted = not ("tpot" in key or "itl" in key or key.startswith("std_"))
    beside = 1e3 * (speed.waiting or 0.0) if is_shifted else 0.0
    return statistic(outcome, key) + beside


def _slower(model: Steps, factor: float) -> StepTime:
    def step(decodes: float, context: float, prefill: float, pairs: float) -> float:
        return factor * model.seconds(decodes, context, prefill, pairs)

    return step


def _grows(outcome: Outcome) -> bool:
    """Whether the queue grows without end: some request never ends, or the last fifth of the
    requests waits much longer than the first fifth.
    """
    fifth = max(len(outcome.served) // 5, 1)
    if any(math.isinf(each.end) for each in outcome.served):
        return True
    first, last = (
        sum(each.ttft for each in part) / fifth
        for part in (outcome.served[:fifth], outcome.served[-fifth:])
    )
    mean = (outcome.served[-1].end - outcome.served[0].arrived) / len(outcome.served)
    return last > 3 * first + 5 * mean


def _fewest(candidate: Candidate, goal: Goal, speed: Speed, computed: float) -> int:
    """Lower bound for the number of replicas that can serve the load within the bounds on TPOT.
    `computed` is the average number of prompt tokens to compute if prefixes are reused.
    """
    model, high = candidate.model, speed.band.high * speed.factor
    isl = sum(arrival.isl for arrival in goal.arrivals) / len(goal.arrivals)
    osl = sum(arrival.osl for arrival in goal.arrivals) / len(goal.arrivals)
    bounds = (slo.limit / 1e3 for slo in goal.slo if "tpot" in slo.key or "itl" in slo.key)
    bound = min(bounds, default=math.inf) / SLACK
    most = min(candidate.sequences, candidate.memory.concurrency(goal.longest))
    tokens = isl if candidate.stores is None else computed
    prefill = prompt_seconds(model, tokens)
    best = 0.0
    for batch in _batches(most):
        each = high * (model.seconds(batch, isl + osl / 2) + batch * prefill / osl)
        if each <= bound:
            best = max(best, batch / (osl * each))
    return max(math.ceil(SLACK * goal.rate / best), 1) if best else NEVER


def _batches(most: int) -> Iterator[int]:
    """Batch sizes to try, from 1 to `most`, each about 25% larger than the last."""
    batch = 1
    while batch < most:
        yield batch
        batch = max(batch + 1, batch * 5 // 4)
    yield most


def candidates(question: Question) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """The candidates that fit, and (partition, reason) for each that does not."""
    found, misfits = [], []
    subject, target, rules = question.subject, question.target, question.rules
    load, goal, speed, kv = question.load, question.goal, question.speed, question.kv
    spec, weights, device = subject.spec, subject.weights, target.accelerator
    all_weights = weights.model_bytes(spec)
    for cut in question.allowed:
        why = rules.refuses(spec, cut, target.per_node)
        if not why and all_weights // cut.size > device.usable:
            why = f"weights alone take {human(all_weights / cut.size)} of each device"
        if not why:
            try:
                memory = sized(spec, weights, device, cut, kv)
            except InvalidValueError as error:
                why = str(error)
        model = None
        for chunk in () if why else CHUNKS if load.chunk <= 0 else (load.chunk,):
            served = max(load.context, goal.longest)
            settings = replace(load, chunk=chunk)
            kept = memory.beside(rules.rule(spec, device, cut, settings))
            why = kept.lacking(served)
            if why:
                continue
            model = (
                model
                or speed.profile
                or step_model(spec, weights, device, cut, speed.constants, kv)
            )
            most = min(load.at_once, kept.concurrency(goal.longest))
            for tiers, kept_in in _tiered(question, kept):
                found.append(Candidate(cut, chunk, most, kept, model, rules.paced, tiers, kept_in))
        if model is None:
            misfits.append((str(cut), why))
    return found, misfits


def _tiered(
    question: Question, memory: Memory
) -> Iterator[tuple[tuple[Tier, ...], tuple[Store, ...] | None]]:
    """Sets of tiers to try, each with the replica's share. Only the empty set, if prompts share no
    prefixes or a replica cannot keep KV.
    """
    if not question.goal.shares or not keeps(memory):
        yield (), None
        return
    for count in range(len(question.tiers) + 1):
        tiers = question.tiers[:count]
        yield tiers, tuple(store(tier, memory, question.target) for tier in tiers)


def _generated(subject: Subject, target: Target, rules: Engine) -> Iterator[Cut]:
    experts = subject.spec.experts
    forms = [(False, False)]
    if experts:
        forms += [(True, False), (True, True)] if rules.by_requests else [(True, False)]
    for tp in range(1, target.count + 1):
        node = target.per_node
        if tp > node and tp % node:
            continue  # A stage that spans hosts must use all devices of each.
        if tp < node and rules.divides and node % tp:
            continue
        for pp in range(1, STAGES + 1):
            if tp * pp > target.count or pp > len(subject.spec.layers):
                break
            for by_experts, by_requests in forms:
                if tp > 1 or not by_experts:
                    yield Cut(tp, pp, by_experts, by_requests)
