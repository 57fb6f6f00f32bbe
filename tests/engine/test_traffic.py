"""Random traffic through an engine with real ranks in stages: everything that the scheduler does,
at once.

The engine's own loop is left out, so that a run depends on nothing but its requests: what arrives
and what is cancelled is drawn for each step. The truth is each request alone on one rank.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from penstock.core import (
    FinishReason,
    GenerationParams,
    LogprobRow,
    Request,
    StepOutput,
    StepPlan,
    StepResult,
)
from penstock.engine import InFlight
from penstock.executor import Executor
from penstock.scheduler import Scheduler
from tests.fakes.sampling import encode
from tests.families import FAMILIES
from tests.real_ranks import VOCAB, engine

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

REQUESTS = 60
SIZES = {"block_size": 16, "max_model_len": 128, "max_num_batched_tokens": 24}
SEQUENCES = 8
BLOCKS = 16
"""Blocks of 16 tokens, for eight sequences of up to 128: they cannot all grow."""
SLOW = pytest.mark.slow
GRIDS = [
    (1, 1),
    (1, 2),
    (2, 1),
    (2, 2),
    pytest.param((1, 3), marks=SLOW),
    pytest.param((2, 3), marks=SLOW),
]
GRIDS += [pytest.param(grid, marks=SLOW) for grid in [(3, 2), (3, 3)]]


@dataclass(frozen=True)
class Arrival:
    step: int
    request: Request


@dataclass
class Ending:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobRow] = field(default_factory=list)
    prompt_logprobs: list[LogprobRow] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE


@dataclass
class Run:
    endings: dict[int, Ending] = field(default_factory=dict)
    rows: list[tuple[int, StepOutput]] = field(default_factory=list)
    """With the step that gave them."""
    cancelled_in_flight: int = 0


def arrivals(seed: int) -> list[Arrival]:
    """Prompts with shared prefixes, many longer than a step; outputs that exceed the memory."""
    draw = random.Random(seed)
    stems = [[draw.randrange(VOCAB) for _ in range(64)] for _ in range(3)]
    found = []
    for number in range(REQUESTS):
        stem = draw.choice(stems)[: draw.choice([0, 0, 17, 48, 64])]
        prompt = stem + [draw.randrange(VOCAB) for _ in range(draw.randint(1, 20))]
        sampling = encode(temperature=number % 2 * 0.9, top_p=0.95, seed=number, logprobs=2)
        params = GenerationParams(
            max_tokens=draw.choice([3, 40, 60]),
            prompt_logprobs=draw.choice([-1, -1, -1, 0]),
            ignore_eos=draw.random() < 0.7,
        )
        found.append(
            Arrival(
                draw.randrange(20), Request(number, array("i", prompt), params, sampling=sampling)
            )
        )
    return found


def untimed(scheduler: Scheduler) -> Scheduler:
    """Measured times would bound the chunks of prompts, and differ from run to run."""
    apply = scheduler.apply

    def apply_untimed(plan: StepPlan, result: StepResult) -> None:
        result.seconds = 0.0
        apply(plan, result)

    scheduler.apply = apply_untimed  # type: ignore[method-assign]
    return scheduler


def play(
    scheduler: Scheduler,
    executor: Executor,
    arrivals: Iterable[Arrival],
    cancel: Callable[[list[int]], int],
) -> Run:
    """All of it, with the audit of blocks, slots and claims after each step.

    `cancel` may choose one of the requests that are under way, or -1.
    """
    run, in_flight = Run(), InFlight(untimed(scheduler), executor)
    due = sorted(arrivals, key=lambda arrival: arrival.step)
    step = 0
    while due or in_flight or scheduler.has_requests():
        while due and due[0].step <= step:
            request = due.pop(0).request
            run.endings[request.id] = Ending()
            scheduler.add(request)
        in_flight.submit_ready()
        unwanted = cancel([number for number, ending in run.endings.items() if not ending.finish])
        if unwanted >= 0:
            before = scheduler.stats()
            scheduler.cancel(unwanted)
            after = scheduler.stats()
            # Blocks of a plan in flight are kept until it is applied.
            kept = before.blocks_used == after.blocks_used
            run.cancelled_in_flight += kept and after.running < before.running
        if in_flight:
            assert in_flight.wait_oldest().error is None
        collect(run, scheduler, step)
        scheduler.check()
        step += 1
    return run


def collect(run: Run, scheduler: Scheduler, step: int) -> None:
    for row in scheduler.take_outputs().rows():
        ending = run.endings[row.id]
        assert not ending.finish, f"a row after the end of request {row.id}"
        ending.tokens += row.tokens
        ending.logprobs += row.logprobs
        ending.prompt_logprobs += row.prompt_logprobs
        ending.finish = row.finish
        run.rows.append((step, row))


def none_cancelled(_live: list[int]) -> int:
    return -1


def some(seed: int) -> Callable[[list[int]], int]:
    draw = random.Random(seed)
    return lambda live: draw.choice(live) if live and draw.random() < 0.02 else -1


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], dict[int, Ending]]:
    """What was computed before, by family and seed."""
    return {}


def truth(
    known: dict[tuple[str, int], dict[int, Ending]], family: str, seed: int
) -> dict[int, Ending]:
    if (family, seed) not in known:
        found: dict[int, Ending] = {}
        single = {
            **SIZES,
            "max_num_batched_tokens": 128,
            "max_num_seqs": 1,
            "enable_prefix_caching": False,
        }
        with engine(family, 8, **single) as (scheduler, executor):
            for arrival in arrivals(seed):
                found |= play(
                    scheduler, executor, [Arrival(0, arrival.request)], none_cancelled
                ).endings
        known[family, seed] = found
    return known[family, seed]


def run_on(family: str, grid: tuple[int, int], seed: int) -> Run:
    tp, pp = grid
    sizes = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "max_num_seqs": SEQUENCES,
        **SIZES,
    }
    backend = "inline" if grid == (1, 1) else "mp"
    with engine(family, BLOCKS, **sizes, distributed_executor_backend=backend) as (
        scheduler,
        executor,
    ):
        assert executor.depth == max(pp, 2)
        run = play(scheduler, executor, arrivals(seed), some(seed))
        stats = scheduler.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    assert run.cancelled_in_flight > 0
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    return run


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=SLOW)])
@pytest.mark.parametrize(
    "family", ["qwen2", *(pytest.param(f, marks=SLOW) for f in FAMILIES if f != "qwen2")]
)
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"tp{grid[0]} pp{grid[1]}")
def test_random_traffic_gives_what_each_request_gives_alone(
    alone: dict[tuple[str, int], dict[int, Ending]], grid: tuple[int, int], family: str, seed: int
) -> None:
    expected = truth(alone, family, seed)
    run = run_on(family, grid, seed)
    finishes = {ending.finish for ending in run.endings.values()}
    assert finishes >= {FinishReason.LENGTH, FinishReason.CANCELLED}
    assert finishes <= {FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.STOP}
    parted = [number for number, ending in run.endings.items() if parts(ending, expected[number])]
    assert len(parted) <= (grid[0] > 1), parted
    assert all(number % 2 for number in parted), "greedy texts are equal"
    if grid[0] == 1:
        check_bits(run, expected)
    again = run_on(family, grid, seed)
    assert again.rows == run.rows


def parts(ending: Ending, expected: Ending) -> bool:
    """Whether a sampled text goes on with a neighbour in the order of probabilities where it may.

    Tensor parallelism changes the order of sums, so the edge between two tokens is elsewhere by
    1e-7 or so.
    """
    pairs = enumerate(zip(ending.tokens, expected.tokens, strict=False))
    at = next((at for at, (token, other) in pairs if token != other), -1)
    if at < 0 and ending.finish is FinishReason.CANCELLED:
        return False
    if at < 0:
        assert (len(ending.tokens), ending.finish) == (len(expected.tokens), expected.finish)
        return False
    (_, rank, _), (_, other, _) = ending.logprobs[at], expected.logprobs[at]
    assert abs(rank - other) <= 1, f"after {at} tokens: rank {rank}, alone {other}"
    return True


def check_bits(run: Run, expected: dict[int, Ending]) -> None:
    """Stages change none."""
    for number, ending in run.endings.items():
        alone = expected[number]
        assert ending.logprobs == alone.logprobs[: len(ending.tokens)]
        # Of a request that is cancelled within its prompt there are fewer.
        assert ending.prompt_logprobs == alone.prompt_logprobs[: len(ending.prompt_logprobs)]
