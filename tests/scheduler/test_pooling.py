"""Pooled requests among others: each ends with the vector of its prompt; nothing else changes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.core import FinishReason, Pooling, StepResult
from tests.fakes.executor import FakeExecutor, pooled_vector
from tests.scheduler.harness import RandomDrafter, World, make_request

BOTH = pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])


def prompts(draw: Random, count: int) -> list[list[int]]:
    """Over two stems, so that prefixes are shared."""
    stems = [[1] * 48, [2] * 64]
    return [
        draw.choice(stems)[: draw.randint(1, 64)]
        + [draw.randrange(3, 97) for _ in range(draw.randint(1, 40))]
        for _ in range(count)
    ]


@BOTH
@pytest.mark.parametrize("seed", range(12))
def test_vectors_and_tokens_are_those_of_each_request_alone(pooling: Pooling, seed: int) -> None:
    draw = Random(seed)
    ahead = draw.choice([(1, 1), (2, 1), (2, 2)])
    world = World(
        num_blocks=draw.choice([14, 20, 64]),
        budget=draw.choice([16, 40]),
        in_flight=ahead[0],
        stages=ahead[1],
        drafter=RandomDrafter(draw) if seed % 3 == 0 else None,
        pooling=pooling,
    )
    requests = [
        make_request(number, prompt, draw.choice([1, 20]), pool=draw.random() < 0.5)
        for number, prompt in enumerate(prompts(draw, 14))
    ]
    for request in requests:
        world.add(request)
        for _ in range(draw.randint(0, 3)):
            world.step()
    world.run()
    for request in requests:
        ending = world.endings[request.id]
        if request.pool:
            (row,) = ending.rows
            assert row.finish is FinishReason.STOP
            assert (row.vector, list(row.tokens)) == (pooled_vector(request.prompt), [])
        else:
            assert (ending.tokens, ending.finish) == world.reference(request)
            assert not any(row.vector for row in ending.rows)


def computed(pooling: Pooling) -> list[int]:
    """Tokens computed for the same prompt, twice."""
    world = World(pooling=pooling)
    counts = []
    for number in range(2):
        world.add(make_request(number, list(range(1, 61)), pool=True))
        world.run()
        counts.append(world.executor.computed - sum(counts))
    return counts


def test_a_mean_computes_every_token_and_the_last_one_shares_its_prefix() -> None:
    assert computed(Pooling.LAST) == [60, 12]
    assert computed(Pooling.MEAN) == [60, 60]


@BOTH
def test_a_preempted_sequence_begins_its_mean_again(pooling: Pooling) -> None:
    world = World(num_blocks=12, budget=16, max_num_seqs=3, prefix=False, pooling=pooling)
    world.add(make_request(0, [5] * 20, 60, ignore_eos=True))
    world.add(make_request(1, [6] * 30, 60, ignore_eos=True))
    for _ in range(12):
        world.step()
    world.add(make_request(2, [7] * 100, pool=True))
    world.run()
    assert world.endings[2].rows[-1].vector == pooled_vector([7] * 100)


def test_a_prompt_may_fill_the_context() -> None:
    world = World(max_model_len=64)
    world.add(make_request(0, [3] * 64, pool=True))
    world.add(make_request(1, [3] * 65, pool=True))
    world.add(make_request(2, [3] * 64))
    world.run()
    finishes = [world.endings[number].finish for number in range(3)]
    assert finishes == [FinishReason.STOP, FinishReason.UNFIT, FinishReason.UNFIT]


def test_a_cancelled_one_gives_everything_back() -> None:
    world = World(budget=16, pooling=Pooling.MEAN)
    world.add(make_request(0, [3] * 100, pool=True))
    world.step()
    world.scheduler.cancel(0)
    world.run()
    world.collect()
    assert world.endings[0].finish is FinishReason.CANCELLED
    assert world.scheduler.stats().blocks_used == 0


class NotFinite(FakeExecutor):
    def _pool(self, row: Any, seen: Any, result: StepResult, *, ends: bool) -> None:
        super()._pool(row, seen, result, ends=ends)
        result.vectors = dict.fromkeys(result.vectors, b"")


def test_a_vector_that_is_not_finite_is_an_error_of_its_request() -> None:
    class Overflowing(World):
        def make_executor(self, **options: Any) -> FakeExecutor:
            return NotFinite(**options)

    world = Overflowing()
    world.add(make_request(0, [3] * 10, pool=True))
    world.run()
    (row,) = world.endings[0].rows
    assert row.finish is FinishReason.ERROR
    assert "infinite or not a number" in row.error
