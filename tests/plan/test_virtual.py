"""The replica in virtual time beside the real scheduler on the same arrivals and step times."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from penstock.core import StepPlan
from penstock.plan import virtual
from penstock.plan.engines import ENGINES, MIXED
from penstock.plan.virtual import UNBOUNDED, Arrival, Limits, Outcome, Replica, StepTime, poisson
from penstock.scheduler import mixed_steps

from tests.scheduler.harness import World, make_request


def step_time(decodes: float, context: float, prefill: float, pairs: float) -> float:
    return 0.010 + 0.0007 * decodes + 0.0001 * prefill


def plain_step_time(decodes: float, context: float, prefill: float, pairs: float) -> float:
    """Costs that the scheduler's averages meet exactly."""
    return (0.010 if decodes else 0.0) + 0.00024 * prefill


def tokens_of(arrival: Arrival) -> list[int]:
    """Equal names give equal blocks."""
    if not arrival.names:
        return list(range(1, arrival.isl + 1))
    blocks = ([1 + name % 900] * arrival.block for name in arrival.names)
    return [token for block in blocks for token in block][: arrival.isl]


def on_the_scheduler(
    arrivals: list[Arrival],
    limits: Limits,
    *,
    prefix: bool = False,
    step_time: StepTime = step_time,
) -> list[tuple[float, float]]:
    """First and last token of each request, by the scheduler and a clock of its own. It learns how
    long steps take where `limits` bound them.
    """
    now, added, times = 0.0, 0, {key: [math.inf, math.inf] for key in range(len(arrivals))}
    before: dict[int, int] = {}

    def run(plan: StepPlan) -> float:
        nonlocal now
        decodes = sum(0 < tokens < arrivals[key].osl for key, tokens in before.items())
        seconds = step_time(decodes, 0.0, len(plan.tokens) - decodes, 0.0)
        now += seconds
        return seconds if limits.mixed != UNBOUNDED else 0.0

    world = World(
        num_blocks=limits.kv_tokens // 16,
        max_num_seqs=limits.sequences,
        budget=limits.chunk,
        max_model_len=4096,
        prefix=prefix,
        vocab=1000,
        step_seconds=run,
    )
    while added < len(arrivals) or world.scheduler.has_requests():
        if not world.scheduler.has_requests():
            now = max(now, arrivals[added].at)
        while added < len(arrivals) and arrivals[added].at <= now:
            arrival = arrivals[added]
            prompt = tokens_of(arrival)
            world.add(make_request(added, prompt, arrival.osl, ignore_eos=True))
            added += 1
        before.update(
            {key: sum(len(row.tokens) for row in e.rows) for key, e in world.endings.items()}
        )
        world.step()
        for key, ending in world.endings.items():
            tokens = sum(len(row.tokens) for row in ending.rows)
            if tokens and before[key] == 0:
                times[key][0] = now
            if tokens == arrivals[key].osl and before[key] < tokens:
                times[key][1] = now
    return [(first, end) for first, end in times.values()]


def drawn(seed: int) -> tuple[list[Arrival], Limits]:
    draw = Random(seed)
    arrivals, now = [], 0.0
    for _ in range(30):
        now += draw.expovariate(draw.choice([4, 40]))
        arrivals.append(Arrival(now, draw.randint(1, 300), draw.choice([1, 2, 20, 60])))
    limits = Limits(draw.choice([2, 6, 16]), draw.choice([24, 64, 256]), 16 * 2000)
    return arrivals, limits


@pytest.mark.parametrize("seed", range(8))
def test_a_replica_batches_as_the_scheduler_does(seed: int) -> None:
    arrivals, limits = drawn(seed)
    real = on_the_scheduler(arrivals, limits)
    served = Replica(step_time, limits).run(arrivals).served
    assert [(each.first, each.end) for each in served] == [
        (pytest.approx(first), pytest.approx(end)) for first, end in real
    ]


def test_steps_have_the_bounds_of_the_scheduler() -> None:
    rule = (mixed_steps.STRETCH, mixed_steps.FEWEST, mixed_steps.DEAREST)
    assert (MIXED.stretch, MIXED.fewest, MIXED.dearest) == rule
    learnt = (mixed_steps.FRESH, mixed_steps.COUNTED)
    assert learnt == (virtual.FRESH, virtual.COUNTED)
    paced = {name for name, engine in ENGINES.items() if engine.mixed != UNBOUNDED}
    assert paced == {"penstock"}, "vLLM and SGLang fill their token budgets"


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_bounds_prompts_beside_decodes_as_the_scheduler_does(seed: int) -> None:
    """Once that knows what steps cost: from the first request, which is alone. Lengths are even, so
    that no chunk of one token looks like a decode.
    """
    draw = Random(seed)
    arrivals, now = [Arrival(0.0, 300, 4)], 0.2
    for _ in range(40):
        now += draw.expovariate(draw.choice([4, 20]))
        arrivals.append(Arrival(now, 2 * draw.randint(1, 300), draw.choice([1, 2, 20, 60])))
    limits = Limits(draw.choice([2, 6, 16]), 256, 16 * 2000, MIXED)
    real = on_the_scheduler(arrivals, limits, step_time=plain_step_time)
    outcome = Replica(plain_step_time, limits).run(arrivals)
    assert [(each.first, each.end) for each in outcome.served] == [
        (pytest.approx(first), pytest.approx(end)) for first, end in real
    ]
    free = Replica(plain_step_time, replace(limits, mixed=UNBOUNDED)).run(arrivals)
    assert outcome.percentile("tpot", 0.99) < free.percentile("tpot", 0.99)


def experts_step_time(decodes: float, context: float, prefill: float, pairs: float) -> float:
    """Each token reads 8 of 128 experts, 64 tokens nearly all."""
    read = 0.15 * (1 - (1 - 8 / 128) ** prefill)
    return (0.010 if decodes else 0.0) + read + 0.0001 * prefill


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_takes_more_tokens_where_few_of_them_are_dear(seed: int) -> None:
    """As the scheduler does with experts, once that knows steps of up to five decodes, and a prompt
    of the fewest tokens beside one.
    """
    draw = Random(seed)
    warm = [(0.0, 128, osl) for osl in (20, 40, 60, 80)] + [(0.9, 32, 1)]
    arrivals, now = [Arrival(*each) for each in warm], 5.0
    for _ in range(25):
        now += draw.expovariate(draw.choice([1, 5]))
        arrivals.append(Arrival(now, 64 * draw.randint(1, 9), draw.choice([1, 2, 20, 60])))
    limits = Limits(5, 512, 16 * 2000, MIXED)
    real = on_the_scheduler(arrivals, limits, step_time=experts_step_time)
    outcome = Replica(experts_step_time, limits).run(arrivals)
    assert [(each.first, each.end) for each in outcome.served] == [
        (pytest.approx(first), pytest.approx(end)) for first, end in real
    ]
    small = replace(limits, mixed=replace(MIXED, dearest=1.0))
    without = Replica(experts_step_time, small).run(arrivals)
    assert outcome.percentile("ttft", 0.5) < without.percentile("ttft", 0.5)


@pytest.mark.parametrize(
    ("token", "chunk", "expected"),
    [(0.00024, 256, 83), (0.00024, 40, 39), (0.001, 256, 32), (0.001, 24, 23), (0.0, 256, 255)],
)
def test_a_prompt_beside_a_decode_is_cut_by_its_time(
    token: float, chunk: int, expected: int
) -> None:
    """At most 3 steps of 10 ms, at least 32 tokens, at most the token budget less the decode."""

    def step(decodes: float, context: float, prefill: float, pairs: float) -> float:
        return 0.010 + token * prefill

    def first(isl: int) -> float:
        arrivals = [Arrival(0.0, 1, 100), Arrival(1e-9, isl, 1)]
        served = Replica(step, Limits(2, chunk, 10_000, MIXED)).run(arrivals).served
        return served[1].first - served[0].first

    assert first(expected) == pytest.approx(step(1, 0, expected, 0))
    assert first(expected + 1) == pytest.approx(step(1, 0, expected, 0) + step(1, 0, 1, 0))


def run(rate: float, limits: Limits) -> Outcome:
    return Replica(step_time, limits).run(poisson(rate, 200, 100, 20))


def test_a_small_kv_makes_requests_wait_and_loses_none() -> None:
    roomy, tight = (run(8, Limits(64, 256, tokens)) for tokens in (1 << 20, 240))
    assert all(each.end < math.inf for each in tight.served)
    assert tight.percentile("ttft", 0.99) > 2 * roomy.percentile("ttft", 0.99)


def test_a_request_that_never_fits_does_not_end() -> None:
    served = run(8, Limits(64, 256, 100)).served
    assert all(math.isinf(each.end) for each in served)


def test_more_load_is_never_faster() -> None:
    limits = Limits(64, 256, 1 << 20)
    rates = (0.5, 2, 8, 16)
    latencies = [run(rate, limits).percentile("e2el", 0.99) for rate in rates]
    assert latencies == sorted(latencies)


def test_percentiles_and_times_of_a_lone_request() -> None:
    outcome = Replica(step_time, Limits(4, 1000, 1000)).run([Arrival(1.0, 100, 5)])
    assert outcome.percentile("ttft", 0.5) == pytest.approx(0.020)
    assert outcome.percentile("tpot", 0.99) == pytest.approx(0.0107)
    assert outcome.busy == pytest.approx(0.020 + 4 * 0.0107)
    assert outcome.seconds == pytest.approx(outcome.busy)


def test_steps_after_a_prompt_are_slower_until_they_settle() -> None:
    """Each prompt token that is computed makes it begin again; less than 1% is left out."""

    def settling(decodes: float, since: float) -> float:
        return 0.008 / decodes * 0.5**since

    def plain(decodes: float, context: float, prefill: float, pairs: float) -> float:
        return 0.010 + 0.0001 * prefill

    limits = Limits(4, 1000, 10_000)
    alone = Replica(plain, limits, None, settling).run([Arrival(0.0, 100, 31)]).served[0]
    slower = 0.008 * sum(0.5**step for step in range(7))
    assert alone.end - alone.first == pytest.approx(30 * 0.010 + slower)
    both = [Arrival(0.0, 100, 31), Arrival(alone.end - 0.095, 100, 1)]
    first = Replica(plain, limits, None, settling).run(both).served[0]
    assert first.end - alone.end == pytest.approx(0.100 * 0.1 + slower)
