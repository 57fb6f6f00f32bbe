"""Random arrivals, cancellations, pool sizes, budgets and shared prefixes: the promises of the scheduler hold."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.core import FinishReason, Request

from tests.scheduler.harness import World, make_request, reference

STEMS = [[(7 * stem + 3 * at) % 90 + 1 for at in range(100)] for stem in range(3)]


@dataclass(frozen=True)
class Arrival:
    step: int
    request: Request
    cancel_after: int | None


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    found = []
    for request_id in range(draw(st.integers(1, 12))):
        stem = STEMS[draw(st.integers(0, 2))][: draw(st.integers(0, 100))]
        tail = draw(st.lists(st.integers(1, 96), min_size=1, max_size=20))
        max_tokens = draw(st.integers(1, 40))
        request = make_request(
            request_id,
            stem + tail,
            max_tokens,
            min_tokens=draw(st.integers(0, max_tokens)),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=tuple(draw(st.lists(st.integers(1, 96), max_size=2))),
            logprobs=draw(st.sampled_from([-1, 0])),
            prompt_logprobs=draw(st.sampled_from([-1, -1, -1, 0])),
            read_prefix_cache=draw(st.booleans()),
            cache_salt=draw(st.sampled_from([b"", b"", b"salt"])),
        )
        cancel = draw(st.none() | st.integers(0, 30))
        found.append(Arrival(draw(st.integers(0, 30)), request, cancel))
    return found


@settings(max_examples=300, deadline=None)
@given(
    plan=arrivals(),
    num_blocks=st.integers(3, 40),
    max_num_seqs=st.integers(1, 6),
    spare_budget=st.integers(0, 60),
    prefix=st.booleans(),
    in_flight=st.integers(1, 3),
    wide=st.booleans(),
)
def test_every_request_ends_once_with_its_own_output(
    plan: list[Arrival],
    num_blocks: int,
    max_num_seqs: int,
    spare_budget: int,
    prefix: bool,
    in_flight: int,
    wide: bool,
) -> None:
    block_size = 32 if wide else 16
    world = World(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        budget=max_num_seqs + spare_budget,
        max_model_len=130,
        prefix=prefix,
        in_flight=in_flight,
    )
    for step in range(61):
        for arrival in plan:
            if arrival.step == step:
                world.add(arrival.request)
            if arrival.cancel_after is not None and arrival.step + arrival.cancel_after == step:
                world.scheduler.cancel(arrival.request.id)
        world.step()
    world.run(most=12 * 160 * 12)
    for arrival in plan:
        check_ending(world, arrival, num_blocks * block_size)
    stats = world.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


def check_ending(world: World, arrival: Arrival, pool_tokens: int) -> None:
    request, ending = arrival.request, world.endings[arrival.request.id]
    expected, finish = reference(request, world.limits.vocab_size, world.limits.max_model_len)
    if ending.finish is FinishReason.CANCELLED:
        assert arrival.cancel_after is not None
        assert ending.tokens == expected[: len(ending.tokens)]
    elif ending.finish is FinishReason.ERROR:
        assert "KV blocks" in ending.rows[-1].error
        assert len(request.prompt) + len(expected) > pool_tokens
        assert ending.tokens == expected[: len(ending.tokens)]
    else:
        assert (ending.tokens, ending.finish) == (expected, finish)
        check_logprobs(world, arrival)


def check_logprobs(world: World, arrival: Arrival) -> None:
    request, ending = arrival.request, world.endings[arrival.request.id]
    prompt_rows = ending.rows[0].prompt_logprobs
    if request.params.prompt_logprobs >= 0:
        assert [row[2][0][0] for row in prompt_rows] == list(request.prompt[1:])
        assert ending.rows[0].cached_tokens == 0
    else:
        assert prompt_rows == []
    if request.params.logprobs >= 0:
        assert [row[2][0][0] for output in ending.rows for row in output.logprobs] == ending.tokens
