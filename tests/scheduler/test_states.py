"""Sequence state beside KV: a hit begins at a checkpoint, and a state is never off by a token.

The fake executor's state is a hash of all tokens with its position, and the world compares each
named slot with the tokens of its name after every step. Issue numbers are those of bugs that other
engines had.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from penstock.core import FinishReason, Request
from tests.scheduler.harness import RandomDrafter, World, make_request

PROMPT = [(3 * at) % 90 + 1 for at in range(200)]


def world(**options: object) -> World:
    sizes: dict[str, object] = {"states": 24, "max_model_len": 400, "num_blocks": 100}
    return World(**{**sizes, **options})  # type: ignore[arg-type]


def answer(request_id: int, prompt: list[int], max_tokens: int = 3, **options: object) -> Request:
    return make_request(request_id, prompt, max_tokens, ignore_eos=True, **options)


def play(world: World, *requests: Request) -> list[int]:
    """Cached tokens of requests that arrive together and are computed to their ends."""
    for request in requests:
        world.add(request)
    world.run()
    return [cached(world, request) for request in requests]


def cached(world: World, request: Request) -> int:
    ending = world.endings[request.id]
    assert (ending.tokens, ending.finish) == world.reference(request)
    return ending.rows[0].cached_tokens


# Hits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [[None], [None, 40], [40]])
@pytest.mark.parametrize("length", [33, 48, 49, 150])
def test_a_repeated_prompt_begins_one_block_before_its_end(
    length: int, windows: list[int | None]
) -> None:
    """vllm#51250, #51198: 0 % hits, because the only checkpoint was at or behind the end."""
    at = world(windows=windows)
    assert play(at, answer(1, PROMPT[:length])) == [0]
    assert play(at, answer(2, PROMPT[:length])) == [(length - 1) // 16 * 16]


@pytest.mark.parametrize("budget", [5, 20, 37, 64, 200])
def test_chunks_that_end_off_the_grid_change_no_hit(budget: int) -> None:
    """vllm#34587: states of partly filled blocks were cached."""
    at = world(budget=budget)
    play(at, answer(1, PROMPT[:150]))
    assert play(at, answer(2, [*PROMPT[:150], 7, 7])) == [144]


def test_the_next_turn_begins_at_the_end_of_the_answer() -> None:
    at = world()
    play(at, answer(1, PROMPT[:50], 40))
    turn = [*PROMPT[:50], *at.endings[1].tokens, 5, 6, 7]
    assert play(at, answer(2, turn)) == [80], "89 tokens of the answer and before were computed"


def test_an_answer_that_is_left_out_of_the_next_turn_costs_less_than_a_block() -> None:
    """vllm#45238: templates drop the reasoning of earlier turns."""
    at = world()
    play(at, answer(1, PROMPT[:50], 40))
    assert play(at, answer(2, [*PROMPT[:50], 5, 6, 7])) == [48]


def test_where_a_prompt_left_another_a_third_one_begins() -> None:
    """SGLang#27220: branching points need checkpoints of their own."""
    at = world()
    assert play(at, answer(1, PROMPT[:150])) == [0]
    assert play(at, answer(2, [*PROMPT[:100], *[9] * 40])) == [0], "KV without a state"
    assert play(at, answer(3, [*PROMPT[:100], *[8] * 40])) == [96]


def test_kv_without_a_state_is_computed_again() -> None:
    """LMCache#2863: only KV was restored."""
    at = world()
    play(at, answer(1, PROMPT[:150]))
    at.kv.states.forget_all()
    before = at.executor.computed
    assert play(at, answer(2, PROMPT[:150])) == [0]
    assert at.executor.computed - before == 150 + 2
    assert play(at, answer(3, PROMPT[:150])) == [144]


def test_a_checkpoint_is_forgotten_with_the_block_of_its_name() -> None:
    at = world()
    play(at, answer(1, PROMPT[:150]))
    assert at.hasher is not None
    digests = at.hasher.digests(answer(0, PROMPT[:150]).prompt, [], b"")
    assert at.kv.states.find(digests[8]) >= 0
    at.kv.forget(digests[8])
    assert at.kv.states.find(digests[8]) < 0
    at.kv.forget_all()
    assert at.kv.states.named == 0
    assert play(at, answer(2, PROMPT[:150])) == [0]


def test_a_prompt_that_reads_no_cache_makes_checkpoints() -> None:
    at = world()
    play(at, answer(1, PROMPT[:60], prompt_logprobs=0))
    assert play(at, answer(2, PROMPT[:60], read_prefix_cache=False)) == [0]
    assert play(at, answer(3, PROMPT[:60])) == [48]


# Prompts that arrive together ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_shared_prefix_is_computed_once(seed: int, forgotten: bool) -> None:
    """Also if its KV is there and its states are not: KV does not count as computed then."""
    draw = Random(seed)
    shared, count = draw.randrange(33, 190), draw.randrange(2, 5)
    at = world(budget=draw.choice([16, 33, 64, 400]), states=draw.choice([8, 24]))
    if forgotten:
        play(at, answer(1, PROMPT[:shared]))
        at.kv.states.forget_all()
    before = at.executor.computed
    tails = [[50 + number] * draw.randrange(1, 20) for number in range(count)]
    play(at, *(answer(10 + at, [*PROMPT[:shared], *tail], 1) for at, tail in enumerate(tails)))
    computed = at.executor.computed - before
    assert computed <= shared + sum(16 + len(tail) for tail in tails)


def test_a_late_arrival_does_not_wait_for_a_state_that_nobody_will_keep() -> None:
    """The claimant has passed the end of what they share: its KV will not save the work."""
    at, late = world(budget=32, in_flight=2), answer(2, [*PROMPT[:90], 5, 5, 5])
    at.add(answer(1, PROMPT[:200]))
    while not at.plans or at.plans[-1].starts[0] < 64:
        at.step()
    at.add(late)
    at.step()
    assert at.scheduler.stats().running == 2
    at.run()
    assert cached(at, late) == 64, "the newest block of the other"


def test_two_prompts_wait_for_one_that_all_share_different_parts_with() -> None:
    at = world(budget=32)
    requests = [
        answer(1, PROMPT[:180]),
        answer(2, [*PROMPT[:90], 5, 5]),
        answer(3, [*PROMPT[:140], 6, 6]),
    ]
    assert play(at, *requests) == [0, 80, 128]


# Slots --------------------------------------------------------------------------------------------


def test_as_many_sequences_run_as_have_two_slots() -> None:
    at = world(states=5, max_num_seqs=4)
    for number in range(1, 6):
        at.add(answer(number, [number] * 20, 8))
    most = 0
    while at.scheduler.has_requests():
        at.step()
        most = max(most, at.scheduler.stats().running)
    assert most == 2
    for number in range(1, 6):
        cached(at, answer(number, [number] * 20, 8))


@pytest.mark.parametrize("options", [{}, {"grammar": b"late"}])
def test_two_slots_suffice_for_one_sequence(options: dict[str, object]) -> None:
    late = iter([True, False] * 1000)
    at = world(states=2, late=lambda: next(late))
    requests = [answer(number, PROMPT[:40], 40, **options) for number in (1, 2)]
    play(at, *requests)
    assert at.scheduler.stats().running == 0


def test_a_checkpoint_without_a_free_slot_is_left_out_and_counted() -> None:
    at = world(states=4, max_num_seqs=2, budget=200)
    requests = [answer(number, [*PROMPT[:100], *[number] * 60]) for number in (1, 2)]
    play(at, *requests)
    assert at.kv.states.skipped > 0


def test_a_slot_of_an_aborted_sequence_leaves_nothing_behind() -> None:
    """tpu-inference#3412: stale slots."""
    at = world(states=2)
    at.add(answer(1, PROMPT[:100], 30))
    for _ in range(6):
        at.step()
    at.scheduler.cancel(1)
    play(at, answer(2, [9] * 50, 20))
    assert at.endings[1].finish is FinishReason.CANCELLED


def test_a_preempted_sequence_goes_on_from_its_newest_block() -> None:
    at = world(num_blocks=8, max_num_seqs=2, budget=64)
    requests = [answer(number, [number] * 40, 60) for number in (1, 2)]
    play(at, *requests)
    assert at.scheduler.stats().preemptions > 0
    cold = sum(len(request.prompt) + 60 - 1 for request in requests)
    lost = at.executor.computed - cold
    assert lost < 16 * (at.scheduler.stats().preemptions + 1) + 40


def test_the_checkpoint_of_a_running_sequence_moves_with_it() -> None:
    at = world()
    at.add(answer(1, PROMPT[:20], 200))
    most = 0
    while at.scheduler.has_requests():
        at.step()
        most = max(most, at.kv.states.named)
    assert most <= 3, "the end of the prompt, the last block, and one that it replaces"


# What is taken back -------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 2])
def test_rejected_drafts_leave_no_trace_in_the_state(in_flight: int) -> None:
    """vllm#43559, #45477, #47861: rejected tokens stayed in the state."""
    drafter = RandomDrafter(Random(5), has_state=True)
    at = world(drafter=drafter, in_flight=in_flight, stages=1)
    requests = [answer(number, [number] * 30, 100) for number in (1, 2)]
    play(at, *requests)
    assert any(plan.drafts for plan in at.plans)
    turn = [*[1] * 30, *at.endings[1].tokens, 4]
    assert play(at, answer(3, turn)) == [128]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_late_mask_takes_the_state_back(in_flight: int) -> None:
    draw = Random(3)
    at = world(late=lambda: draw.random() < 0.6, in_flight=in_flight, stages=1)
    requests = [answer(number, PROMPT[: 20 * number], 30, grammar=b"g") for number in (1, 2, 3)]
    play(at, *requests)
    assert any(plan.starts[0] == before.starts[0] for before, plan in pairwise(at.plans))
