"""Finds the cheapest deployment that meets the latency goal, by simulating candidates in virtual
time.

Candidates are tried by number of devices, cheapest first, and each with more replicas when it
fails, so the first that meets the goal is the cheapest. Candidates are skipped only by a lower
bound of their simulated latency.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.config import ON_GPUS
from penstock.core import InvalidValueError
from penstock.model.sizing import whole
from penstock_lab.bench.slo import Slo
from penstock_ops.plan.calibration import Band
from penstock_ops.plan.cut import Cut
from penstock_ops.plan.engines import Engine, Load
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.lines import human
from penstock_ops.plan.memory import Memory, sized
from penstock_ops.plan.prefixes import Prefixes, Store
from penstock_ops.plan.speed import Constants, Steps, step_model
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.tiers import Tier, keeps, store
from penstock_ops.plan.virtual import Arrival, Limits, Outcome, Replica, StepTime

CHUNKS = (2048, ON_GPUS.tokens)
"""Token budgets of a step to try."""
SEQUENCES = 1024
STAGES = 16
"""Maximum number of stages to try. Every token passes through all of them."""
SLACK = 0.9
"""Tolerance of a bound by averages: a percentile of few requests may be below the average."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Requirements on a deployment."""

    arrivals: tuple[Arrival, ...]
    """Requests to all replicas, in order. They are distributed round-robin."""
    slo: tuple[Slo, ...]

    @property
    def rate(self) -> float:
        """Requests per second."""
        span = self.arrivals[-1].at - self.arrivals[0].at
        return (len(self.arrivals) - 1) / span if span > 0 else 0.0

    @property
    def computed(self) -> float:
        """Average prompt tokens that one replica must compute if it never evicts."""
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
        """Whether prompts share prefixes."""
        return any(arrival.names for arrival in self.arrivals)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(arrival.isl + arrival.osl for arrival in self.arrivals)


@dataclass(frozen=True, slots=True)
class Speed:
    """Step times: constants, their error band, and whether TTFT is known."""

    constants: Constants
    band: Band
    source: str
    profile: Steps | None = None
    """Measured steps of this model on this target, which replace the constants."""
    factor: float = 1.0
    """Ratio of measured to predicted step time, if deployments were measured."""
    waiting: float | None = None
    """Seconds of TTFT outside steps; None if TTFT is unknown."""


Order = tuple[int, int, Cut, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A deployment that fits."""

    cut: Cut
    chunk: int
    sequences: int
    memory: Memory
    model: Steps
    paced: bool
    tiers: tuple[Tier, ...] = ()
    stores: tuple[Store, ...] | None = None
    """The replica's share of the tiers; None: it computes every prompt completely."""

    def order(self) -> Order:
        return len(self.tiers), self.cut.size, self.cut, self.chunk


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with a number of replicas, simulated at the pessimistic end of the band."""

    candidate: Candidate
    replicas: int
    outcome: Outcome
    worst: float
    """Maximum ratio of a statistic to its bound."""
    failed: str
    """Why it misses the goal; empty if it meets it."""

    @property
    def devices(self) -> int:
        return self.candidate.cut.size * self.replicas


@dataclass(frozen=True, slots=True)
class Found:
    """The choice, rejected trials with reasons, and candidates that do not fit."""

    choice: Trial | None
    lost: tuple[Trial, ...]
    misfits: tuple[tuple[str, str], ...]
    """Cut and reason, smallest first."""
    simulated: int


@dataclass(frozen=True, slots=True)
class Question:
    """A model, hardware to choose from, and the goal."""

    subject: Subject
    target: Target
    rules: Engine
    load: Load
    goal: Goal
    speed: Speed
    kv: str = "bf16"
    tiers: tuple[Tier, ...] = ()
    """KV tiers that may be used: none, the first, the first two, and so on."""
    cuts: Sequence[Cut] = ()
    """Cuts to choose from; empty for all that the engine supports."""

    @property
    def allowed(self) -> Sequence[Cut]:
        return self.cuts or list(_generated(self.subject, self.target, self.rules))


def search(question: Question) -> Found:
    """The deployment with the fewest devices of the target that meets the goal."""
    target, goal, speed = question.target, question.goal, question.speed
    question = replace(question, cuts=question.allowed)
    sizes = {str(cut): cut.size for cut in question.cuts}
    fitting, misfits = candidates(question)
    queue: list[tuple[int, Order, int]] = []
    computed = goal.computed
    at = {candidate.order(): candidate for candidate in fitting}
    for candidate in fitting:
        first = _fewest(candidate, goal, speed, computed)
        if first * candidate.cut.size <= target.count:
            taken = target.taken(first * candidate.cut.size)
            queue.append((taken, candidate.order(), first))
        else:
            misfits.append((str(candidate.cut), f"needs at least {first} replicas for the load"))
    heapq.heapify(queue)
    held: list[Trial] = []
    lost: list[Trial] = []
    least = math.inf
    while queue and queue[0][0] <= least:
        taken, order, replicas = heapq.heappop(queue)
        if held and order[0] > len(held[0].candidate.tiers):
            break  # The same number of devices with more tiers is never chosen.
        trial = judge(at[order], replicas, goal, speed)
        (lost if trial.failed else held).append(trial)
        least = least if trial.failed else min(least, taken)
        more = (replicas + 1) * at[order].cut.size
        if trial.failed and more <= target.count:
            heapq.heappush(queue, (target.taken(more), order, replicas + 1))
    held.sort(key=_preference)
    choice = held[0] if held else None
    misfits.sort(key=lambda misfit: sizes.get(misfit[0], 0))
    return Found(choice, (*held[1:], *lost), tuple(misfits), len(held) + len(lost))


def _preference(trial: Trial) -> tuple[int, float, int, Order]:
    """Preference among equally many devices: fewest tiers, then the largest margin."""
    candidate = trial.candidate
    return len(candidate.tiers), trial.worst, trial.devices, candidate.order()


def judge(candidate: Candidate, replicas: int, goal: Goal, speed: Speed) -> Trial:
    """Simulate one replica with its share of the arrivals, at the pessimistic end of the band."""
    outcome = simulate(candidate, replicas, goal, speed.band.high * speed.factor)
    failed, worst = "", 0.0
    for slo in goal.slo:
        value = judged(outcome, slo.key, speed)
        worst = max(worst, value / slo.limit)
        if value > slo.limit and not failed:
            failed = f"{slo.key} {value:.0f} > {slo.limit:g}"
    if not failed and _grows(outcome):
        failed = "the queue grows: requests come faster than they are served"
    return Trial(candidate, replicas, outcome, worst, failed)


def simulate(candidate: Candidate, replicas: int, goal: Goal, factor: float) -> Outcome:
    """Simulate the first of `replicas` replicas, with steps and loads slower by `factor`."""
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
    """A statistic in milliseconds, such as `p99_tpot_ms` or `mean_ttft_ms`."""
    kind, metric, _ = key.split("_")
    if kind in ("mean", "std"):
        values = [outcome.percentile(metric, share / 200) for share in range(1, 201)]
        return 1e3 * sum(values) / len(values)
    share = 0.5 if kind == "median" else float(kind[1:]) / 100
    return 1e3 * outcome.percentile("tpot" if metric == "itl" else metric, share)


def judged(outcome: Outcome, key: str, speed: Speed) -> float:
    """A statistic plus the wait outside steps, or without it if that is unknown."""
    beside = 0.0 if "tpot" in key or "itl" in key else 1e3 * (speed.waiting or 0.0)
    return statistic(outcome, key) + beside


def _slower(model: Steps, factor: float) -> StepTime:
    def step(decodes: float, context: float, prefill: float, pairs: float) -> float:
        return factor * model.seconds(decodes, context, prefill, pairs)

    return step


def _grows(outcome: Outcome) -> bool:
    """Whether the last fifth of the requests waits much longer than the first."""
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
    """Minimum number of replicas that can serve the load within the bounds on TPOT."""
    model, high = candidate.model, speed.band.high * speed.factor
    isl = sum(arrival.isl for arrival in goal.arrivals) / len(goal.arrivals)
    osl = sum(arrival.osl for arrival in goal.arrivals) / len(goal.arrivals)
    bounds = (slo.limit / 1e3 for slo in goal.slo if "tpot" in slo.key or "itl" in slo.key)
    bound = min(bounds, default=math.inf) / SLACK
    most = min(candidate.sequences, candidate.memory.concurrency(goal.longest))
    tokens = isl if candidate.stores is None else computed
    prefill = model.seconds(0, 0, tokens) - model.seconds(0, 0, 0)
    best = 0.0
    for batch in _batches(most):
        each = high * (model.seconds(batch, isl + osl / 2) + batch * prefill / osl)
        if each <= bound:
            best = max(best, batch / (osl * each))
    return max(math.ceil(SLACK * goal.rate / best), 1) if best else 1 << 30


def _batches(most: int) -> Iterator[int]:
    """Batch sizes from 1 to `most`, in steps of 25%."""
    batch = 1
    while batch < most:
        yield batch
        batch = max(batch + 1, batch * 5 // 4)
    yield most


def candidates(question: Question) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Candidates that fit, and cuts that do not, with the reason."""
    found, misfits = [], []
    subject, target, rules = question.subject, question.target, question.rules
    load, goal, speed, kv = question.load, question.goal, question.speed, question.kv
    spec, weights, device = subject.spec, subject.weights, target.accelerator
    all_weights = weights.bytes(whole(spec))
    for cut in question.allowed:
        why = rules.refuses(spec, cut, target.per_node)
        if not why and all_weights // cut.size > device.usable:
            why = f"weights alone take {human(all_weights / cut.size)} of a rank"
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
            most = min(load.sequences or SEQUENCES, kept.concurrency(goal.longest))
            for tiers, kept_in in _tiered(question, kept):
                found.append(Candidate(cut, chunk, most, kept, model, rules.paced, tiers, kept_in))
        if model is None:
            misfits.append((str(cut), why))
    return found, misfits


def _tiered(
    question: Question, memory: Memory
) -> Iterator[tuple[tuple[Tier, ...], tuple[Store, ...] | None]]:
    """Sets of tiers to try, if prompts share prefixes and a replica can keep them."""
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
            continue  # A stage over several hosts must use all of their devices.
        if tp < node and rules.divides and node % tp:
            continue
        for pp in range(1, STAGES + 1):
            if tp * pp > target.count or pp > len(subject.spec.layers):
                break
            for by_experts, by_requests in forms:
                if tp > 1 or not by_experts:
                    yield Cut(tp, pp, by_experts, by_requests)
