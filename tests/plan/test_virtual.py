"""The replica in virtual time beside the real scheduler on the same arrivals and step times."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from penstock.core import StepPlan
from penstock_ops.plan.arrivals import poisson
from penstock_ops.plan.engines import ENGINES
from penstock_ops.plan.virtual import Arrival, Limits, Outcome, Replica, StepTime
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
        return seconds if limits.paced else 0.0

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


def test_penstock_alone_paces_prompts() -> None:
    paced = {name for name, engine in ENGINES.items() if engine.paced}
    assert paced == {"penstock"}, "vLLM and SGLang fill their token budgets"


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_bounds_prompts_beside_decodes_as_the_scheduler_does(seed: int) -> None:
    """Lengths are even, so that no chunk of one token looks like a decode."""
    draw = Random(seed)
    arrivals, now = [Arrival(0.0, 300, 4)], 0.2
    for _ in range(40):
        now += draw.expovariate(draw.choice([4, 20]))
        arrivals.append(Arrival(now, 2 * draw.randint(1, 300), draw.choice([1, 2, 20, 60])))
    limits = Limits(draw.choice([2, 6, 16]), 256, 16 * 2000, paced=True)
    real = on_the_scheduler(arrivals, limits, step_time=plain_step_time)
    outcome = Replica(plain_step_time, limits).run(arrivals)
    assert [(each.first, each.end) for each in outcome.served] == [
        (pytest.approx(first), pytest.approx(end)) for first, end in real
    ]
    free = Replica(plain_step_time, replace(limits, paced=False)).run(arrivals)
    assert outcome.percentile("tpot", 0.99) < free.percentile("tpot", 0.99)


def experts_step_time(decodes: float, context: float, prefill: float, pairs: float) -> float:
    """Each token reads 8 of 128 experts, 64 tokens nearly all."""
    read = 0.15 * (1 - (1 - 8 / 128) ** prefill)
    return (0.010 if decodes else 0.0) + read + 0.0001 * prefill


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_paces_experts_as_the_scheduler_does(seed: int) -> None:
    draw = Random(seed)
    arrivals, now = [Arrival(0.0, 128, 20)], 5.0
    for _ in range(25):
        now += draw.expovariate(draw.choice([1, 5]))
        arrivals.append(Arrival(now, 64 * draw.randint(1, 9), draw.choice([1, 2, 20, 60])))
    limits = Limits(5, 512, 16 * 2000, paced=True)
    real = on_the_scheduler(arrivals, limits, step_time=experts_step_time)
    outcome = Replica(experts_step_time, limits).run(arrivals)
    assert [(each.first, each.end) for each in outcome.served] == [
        (pytest.approx(first), pytest.approx(end)) for first, end in real
    ]


@pytest.mark.parametrize(("token", "chunk"), [(0.00024, 256), (0.00024, 40), (0.0005, 256)])
def test_a_long_prompt_beside_a_decode_stretches_no_step_beyond_the_bound(
    token: float, chunk: int
) -> None:
    """At most 3 steps of 10 ms, at most the token budget less the decode, once sizes were tried."""
    longest: list[float] = []

    def step(decodes: float, context: float, prefill: float, pairs: float) -> float:
        seconds = 0.010 + token * prefill
        if decodes and prefill > 1:
            longest.append(seconds)
        return seconds

    arrivals = [Arrival(0.0, 1, 400), Arrival(0.1, 3000, 1)]
    Replica(step, Limits(2, chunk, 10_000, paced=True)).run(arrivals)
    assert max(longest[-20:-1]) <= 0.030
    assert max(longest[-20:-1]) >= min(0.025, step(1, 0, chunk - 1, 0))


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
