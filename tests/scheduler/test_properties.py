"""The scheduler's promises under random arrivals, cancellations, pool sizes, budgets and shared
prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import FinishReason, Request
from penstock.core.plan import MAX_PLAN_GRAMMAR_BYTES
from penstock.kv import window_blocks
from tests.fakes.sampling import wants_logprobs
from tests.scheduler.harness import RandomDrafter, World, make_request

STEMS = [[(7 * stem + 3 * at) % 90 + 1 for at in range(100)] for stem in range(2)]

LARGE = [letter * (MAX_PLAN_GRAMMAR_BYTES * 2 // 3) for letter in (b"a", b"b")]
"""Grammars of which one plan can carry one."""


@dataclass(frozen=True)
class Arrival:
    step: int
    request: Request
    cancel_at: int | None


def draw_arrival(draw: Random, request_id: int) -> Arrival:
    """Mostly plain requests over two stems: prefixes are shared, blocks run out, prompts repeat."""
    stem = draw.choice(STEMS)[: draw.choice([0, 16, 32, 49, 64, 64, 90])]
    tail = [(draw.choice([1, 31]) + at) % 96 + 1 for at in range(draw.choice([0, 1, 9, 16]))]
    max_tokens = draw.choice([1, 20, 35, 40])
    prompt = stem + tail or [1]
    request = make_request(
        request_id,
        prompt,
        max_tokens,
        resumed=draw.choice([0, 0, 0, min(len(prompt), max_tokens, 7) - 1]),
        min_tokens=draw.choice([0, 0, max_tokens // 2]),
        ignore_eos=draw.random() < 0.7,
        stop_token_ids=draw.choice([(), (), (5, 6)]),
        logprobs=draw.choice([-1, 0]),
        prompt_logprobs=draw.choice([-1, -1, -1, 0]),
        read_prefix_cache=draw.random() < 0.8,
        cache_salt=draw.choice([b"", b"", b"", b"", b"salt"]),
        priority=draw.choice([0, 0, 0, -1, 5]),
        grammar=draw.choice([b"", b"", b"", b"small", *LARGE]),
    )
    step = draw.choice([0, 0, 1, 2, 9])
    return Arrival(step, request, draw.choice([None, None, None, None, step, step + 3, step + 20]))


def draw_world(draw: Random, has_state: bool = False) -> World:
    states = draw.choice([2, 5, 8, 12, 40]) if has_state else 0
    block_size = draw.choice([16, 16, 32])
    max_num_seqs = draw.choice([1, 3, 6, 6])
    windows = draw.choice([(None,), (None,), (None, 24), (40, None), (20,), (16, None, 50)])
    drafter = RandomDrafter(draw, windows=windows, has_state=has_state)
    drafts = draw.random() < 0.3
    budget = max_num_seqs + draw.choice([0, 3, 20, 50, 100])
    late = draw.choice([0.0, 0.3, 0.8])
    return World(
        num_blocks=draw_blocks(draw, block_size, windows, budget),
        windows=windows,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        budget=budget,
        max_model_len=130,
        prefix=draw.random() < 0.8,
        in_flight=draw.choice([1, 2, 2, 3]),
        stages=draw.choice([0, 1, 1, 2]),
        fail_at=[draw.randrange(1, 60)] if draw.random() < 0.2 else [],
        drafter=drafter if drafts else None,
        by_priority=draw.random() < 0.4,
        late=lambda: draw.random() < late,
        states=states,
    )


def draw_blocks(
    draw: Random, block_size: int, windows: Sequence[int | None], budget: int
) -> list[int]:
    """Blocks of each group: with a window, enough for one sequence at least."""
    blocks = []
    for window in windows:
        least = 0 if window is None else window_blocks(window, budget, block_size)
        most = draw.choice([96, 128, 160, 192, 260, 400]) // block_size
        blocks.append(max(least, most))
    return blocks


def play(world: World, arrivals: list[Arrival]) -> None:
    for step in range(36):
        for arrival in arrivals:
            if arrival.step == step:
                world.add(arrival.request)
            if arrival.cancel_at == step:
                world.scheduler.cancel(arrival.request.id)
        world.step()
    world.run(most=12 * 160 * 12)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=True))
def test_every_request_ends_once_with_its_own_output(draw: Random) -> None:
    check_random_world(draw)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(60))
def test_a_state_is_never_off_by_a_token(seed: int) -> None:
    check_random_world(Random(seed), has_state=True)


@pytest.mark.slow
@pytest.mark.parametrize("has_state", [False, True])
def test_thousands_of_worlds(has_state: bool) -> None:
    for seed in range(5000):
        check_random_world(Random(seed), has_state)


def check_random_world(draw: Random, has_state: bool = False) -> None:
    arrivals = [draw_arrival(draw, request_id) for request_id in range(draw.randint(1, 12))]
    world = draw_world(draw, has_state)
    play(world, arrivals)
    for arrival in arrivals:
        check_ending(world, arrival)
    stats = world.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert world.kv.states.available == world.kv.states.slots


def check_ending(world: World, arrival: Arrival) -> None:
    request, ending = arrival.request, world.endings[arrival.request.id]
    expected, finish = world.reference(request)
    if ending.finish is FinishReason.CANCELLED:
        assert arrival.cancel_at is not None
        assert ending.tokens == expected[: len(ending.tokens)]
    elif ending.finish in (FinishReason.ERROR, FinishReason.UNFIT):
        check_error(world, ending.rows[-1].error, len(request.prompt) + len(expected))
        assert ending.tokens == expected[: len(ending.tokens)]
    else:
        assert (ending.tokens, ending.finish) == (expected, finish)
        check_logprobs(world, arrival)


def check_error(world: World, error: str, tokens: int) -> None:
    """A request fails with the step that was told to fail, or outgrows a pool."""
    if "told to fail" in error:
        assert world.executor.fail_at
        return
    assert "KV blocks" in error
    unbounded = [
        blocks
        for blocks, window in zip(world.executor.num_blocks, world.windows, strict=True)
        if window is None
    ]
    assert tokens > min(unbounded) * world.executor.block_size


def check_logprobs(world: World, arrival: Arrival) -> None:
    request, ending = arrival.request, world.endings[arrival.request.id]
    prompt_rows = ending.rows[0].prompt_logprobs
    if request.params.prompt_logprobs >= 0:
        prompt = request.prompt[: len(request.prompt) - request.resumed]
        assert [row[2][0][0] for row in prompt_rows] == list(prompt[1:])
        assert ending.rows[0].cached_tokens == 0
    else:
        assert prompt_rows == []
    if wants_logprobs(request.sampling):
        assert [row[2][0][0] for output in ending.rows for row in output.logprobs] == ending.tokens
