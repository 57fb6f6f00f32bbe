"""What the scheduler decides, case by case."""

from array import array

import pytest

from penstock.core import FinishReason, InvalidValueError, Request, StepPlan
from penstock.core.plan import MAX_PLAN_GRAMMAR_BYTES, NO_TOKEN, NOT_FINITE
from penstock.scheduler import Limits
from tests.scheduler.harness import EOS, World, make_request, reference

PROMPT = [(3 * at) % 90 + 1 for at in range(70)]


def lengths(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return list(plan.lengths)


def long_answer(
    request_id: int, prompt: list[int], max_tokens: int = 30, **options: object
) -> Request:
    return make_request(request_id, prompt, max_tokens, ignore_eos=True, **options)


def test_a_prompt_is_computed_in_chunks_and_sampled_after_the_last() -> None:
    world = World(budget=32)
    world.add(long_answer(1, PROMPT, 2))
    plans = [world.step() for _ in range(4)]
    assert [lengths(plan) for plan in plans] == [[32], [32], [6], [1]]
    assert [list(plan.sample) for plan in plans if plan] == [[0], [0], [1], [1]]
    assert world.endings[1].finish is FinishReason.LENGTH


def test_decodes_come_first_and_chunks_take_what_is_left() -> None:
    world = World(budget=32)
    world.add(long_answer(1, [1, 2, 3]))
    world.step()
    world.add(long_answer(2, PROMPT))
    world.add(long_answer(3, PROMPT[::-1]))
    assert lengths(world.step()) == [1, 31]
    assert lengths(world.step()) == [1, 31]
    assert lengths(world.step()) == [1, 8, 23]


def test_registrations_come_with_the_first_step_only() -> None:
    world = World(budget=32)
    request = long_answer(
        1, PROMPT, temperature=0.5, top_k=3, top_p=0.9, seed=11, choice=2, logprobs=4
    )
    world.add(request)
    first, second = world.step(), world.step()
    assert first is not None
    assert second is not None
    registration = first.registrations[0]
    assert (registration.slot, registration.prompt_logprobs) == (0, -1)
    assert registration.sampling == request.sampling
    assert second.registrations == []


def test_a_repeated_prompt_hits_all_but_its_last_block() -> None:
    world = World()
    for request_id in (1, 2):
        world.add(make_request(request_id, PROMPT[:64]))
        world.run()
    row = world.endings[2].rows[0]
    assert row.cached_tokens == 48
    stats = world.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (128, 48)


def test_generated_tokens_are_cached_too() -> None:
    world = World()
    world.add(long_answer(1, PROMPT[:20], 40))
    world.run()
    conversation = PROMPT[:20] + world.endings[1].tokens
    world.add(make_request(2, [*conversation, 5]))
    world.run()
    assert world.endings[2].rows[0].cached_tokens == 48


@pytest.mark.parametrize(
    "options",
    [{"read_prefix_cache": False}, {"prompt_logprobs": 0}, {"cache_salt": b"other tenant"}],
)
def test_some_requests_do_not_read_what_others_computed(options: dict[str, object]) -> None:
    world = World()
    world.add(make_request(1, PROMPT))
    world.run()
    world.add(make_request(2, PROMPT, 4, **options))
    world.run()
    assert world.endings[2].rows[0].cached_tokens == 0


def test_without_a_prefix_cache_nothing_is_found() -> None:
    world = World(prefix=False)
    for request_id in (1, 2):
        world.add(make_request(request_id, PROMPT))
        world.run()
    assert world.endings[2].rows[0].cached_tokens == 0
    assert world.endings[1].tokens == world.endings[2].tokens


def test_a_prefix_that_somebody_is_computing_is_awaited() -> None:
    world = World(budget=32)
    world.add(make_request(1, [*PROMPT, 1]))
    world.add(make_request(2, [*PROMPT, 2]))
    world.add(make_request(3, [9, 9]))
    assert lengths(world.step()) == [32]
    assert lengths(world.step()) == [32]
    world.run()
    assert world.endings[2].rows[0].cached_tokens == 64
    assert world.executor.computed < len(PROMPT) + 40


def test_others_pass_a_request_that_awaits_a_prefix() -> None:
    world = World(budget=40)
    world.add(make_request(1, PROMPT[:33]))
    world.add(make_request(2, [*PROMPT[:33], 2]))
    world.add(make_request(3, [9, 9]))
    plan = world.step()
    assert lengths(plan) == [33, 2]


def test_when_the_owner_of_an_awaited_prefix_goes_the_next_one_computes_it() -> None:
    world = World(budget=32)
    world.add(make_request(1, PROMPT))
    world.add(make_request(2, PROMPT))
    world.step()
    world.scheduler.cancel(1)
    world.collect()
    assert lengths(world.step()) == [32]
    world.run()
    assert world.endings[1].finish is FinishReason.CANCELLED
    assert world.endings[2].tokens == reference(make_request(2, PROMPT), 97, 256)[0]


def test_preemption_takes_the_latest_arrival_and_changes_no_output() -> None:
    world = World(num_blocks=6, budget=64, max_num_seqs=4, prefix=False)
    requests = [long_answer(request_id, [request_id] * 15, 50) for request_id in range(3)]
    for request in requests:
        world.add(request)
    world.run()
    assert world.scheduler.stats().preemptions > 0
    for request in requests:
        assert world.endings[request.id].tokens == reference(request, 97, 256)[0]


@pytest.mark.parametrize("min_tokens", [0, 30])
def test_an_output_that_was_cut_off_anywhere_goes_on_as_if_it_had_not_been(min_tokens: int) -> None:
    def request(request_id: int, prompt: list[int], resumed: int) -> Request:
        return make_request(
            request_id,
            prompt,
            40,
            min_tokens=min_tokens,
            stop_token_ids=(5, 6),
            needs_history=True,
            resumed=resumed,
        )

    prompt = [3] * 20
    whole, finish = reference(request(0, prompt, 0), 97, 256)
    assert len(whole) > 1
    world = World()
    for cut in range(len(whole)):
        world.add(request(cut, prompt + whole[:cut], cut))
    world.run()
    for cut in range(len(whole)):
        ending = world.endings[cut]
        assert (whole[:cut] + ending.tokens, ending.finish) == (whole, finish)
        assert ending.rows[0].cached_tokens <= len(prompt)
    histories = [each for plan in world.plans for each in plan.registrations]
    assert {each.prompt_len for each in histories} == {len(prompt)}
    assert {len(each.history) for each in histories} >= {len(prompt), len(prompt) + 1}


def test_a_sampler_that_needs_the_tokens_gets_all_of_them_again_after_a_preemption() -> None:
    world = World(num_blocks=6, budget=64, max_num_seqs=4)
    requests = [
        make_request(i, [i + 1] * 15, 50, ignore_eos=True, needs_history=i != 1) for i in range(3)
    ]
    for request in requests:
        world.add(request)
    world.run()
    assert world.scheduler.stats().preemptions > 0
    outputs = {i: world.endings[i].tokens for i in range(3)}
    registrations = [each for plan in world.plans for each in plan.registrations]
    assert len(registrations) > 3
    lengths = set()
    for each in registrations:
        if not each.history:
            continue
        prompt, output = (
            list(each.history[: each.prompt_len]),
            list(each.history[each.prompt_len :]),
        )
        owner = next(r.id for r in requests if list(r.prompt) == prompt)
        assert owner != 1
        assert outputs[owner][: len(output)] == output
        lengths.add(len(output))
    assert 0 in lengths
    assert max(lengths) > 0


def test_prompt_logprobs_survive_a_preemption_halfway_through_the_prompt() -> None:
    world = World(num_blocks=8, budget=3, max_num_seqs=2, prefix=False)
    prompt = [*PROMPT, *PROMPT[:10]]
    world.add(long_answer(1, [1] * 15, 60))
    for _ in range(6):
        world.step()
    world.add(make_request(2, prompt, prompt_logprobs=0))
    world.run()
    assert world.scheduler.stats().preemptions > 0
    rows = world.endings[2].rows[0].prompt_logprobs
    assert [row[2][0][0] for row in rows] == prompt[1:]


def test_a_prompt_that_no_pool_of_this_size_holds_ends_at_once() -> None:
    world = World(num_blocks=3)
    world.add(make_request(1, PROMPT))
    world.collect()
    assert world.endings[1].finish is FinishReason.UNFIT
    assert "needs 5 KV blocks of 16 tokens, the pool has 3" in world.endings[1].rows[0].error


def test_a_request_that_outgrows_the_pool_ends_with_the_numbers() -> None:
    world = World(num_blocks=3)
    world.add(long_answer(1, PROMPT[:40], 60))
    world.run()
    ending = world.endings[1]
    assert ending.finish is FinishReason.UNFIT
    assert len(ending.tokens) == 3 * 16 - 40 + 1
    assert "needs 4 KV blocks" in ending.rows[-1].error


@pytest.mark.parametrize("prompt", [[97], [-1], [5] * 256])
def test_a_prompt_that_the_model_cannot_take_is_refused(prompt: list[int]) -> None:
    world = World()
    world.add(make_request(1, prompt))
    world.collect()
    assert world.endings[1].finish is FinishReason.UNFIT


def test_a_full_queue_rejects() -> None:
    world = World(max_queue=1, max_num_seqs=1)
    for request_id in (1, 2, 3):
        world.add(make_request(request_id, [1]))
    world.collect()
    assert world.endings[3].finish is FinishReason.REJECTED
    world.run()
    for request_id in (1, 2):
        assert world.endings[request_id].finish in (FinishReason.LENGTH, FinishReason.STOP)


def test_requests_that_can_run_at_once_are_not_queued() -> None:
    world = World(max_queue=1, max_num_seqs=8)
    for request_id in range(9):
        world.add(make_request(request_id, [1]))
    world.collect()
    world.run()
    finishes = {ending.finish for ending in world.endings.values()}
    assert finishes <= {FinishReason.LENGTH, FinishReason.STOP}


def test_a_request_that_is_cancelled_already_takes_no_room() -> None:
    world = World(max_queue=1, max_num_seqs=1)
    world.scheduler.add(make_request(1, [1]), cancelled=True)
    world.add(make_request(2, [1]))
    world.add(make_request(3, [1]))
    finishes = {row.id: row.finish for row in world.scheduler.take_outputs().rows()}
    assert finishes == {1: FinishReason.CANCELLED}


def test_a_cancel_between_steps_frees_the_blocks_at_once() -> None:
    world = World()
    world.add(long_answer(1, PROMPT))
    world.step()
    assert world.scheduler.stats().blocks_used == 5
    world.scheduler.cancel(1)
    world.collect()
    assert world.endings[1].finish is FinishReason.CANCELLED
    assert world.scheduler.stats().blocks_used == 0


def test_a_cancel_during_a_step_waits_for_it() -> None:
    world = World(in_flight=2)
    world.add(long_answer(1, PROMPT[:20]))
    world.step()
    world.scheduler.cancel(1)
    assert world.scheduler.stats().blocks_used > 0
    world.run()
    assert world.endings[1].finish is FinishReason.CANCELLED
    assert world.scheduler.stats().blocks_used == 0


def test_a_cancel_of_an_unknown_request_is_ignored() -> None:
    World().scheduler.cancel(99)


def test_two_live_requests_cannot_share_an_id() -> None:
    world = World()
    world.add(make_request(1, [1]))
    with pytest.raises(InvalidValueError, match="request id"):
        world.scheduler.add(make_request(1, [2]))


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    world = World(max_num_seqs=1, fail_at=[2])
    world.add(long_answer(1, [1, 2]))
    world.add(long_answer(2, [3, 4], 3))
    world.run()
    assert world.endings[1].finish is FinishReason.ERROR
    assert "told to fail" in world.endings[1].rows[-1].error
    assert world.endings[2].finish is FinishReason.LENGTH


def test_a_stop_token_before_min_tokens_is_an_ordinary_token() -> None:
    output, _ = reference(make_request(0, [1, 2, 3], 10, ignore_eos=True), 97, 256)
    stop = output[2]
    world = World()
    world.add(make_request(1, [1, 2, 3], 10, ignore_eos=True, stop_token_ids=(stop,)))
    world.add(make_request(2, [1, 2, 3], 10, ignore_eos=True, stop_token_ids=(stop,), min_tokens=5))
    world.run()
    assert world.endings[1].tokens == output[: output.index(stop) + 1]
    assert world.endings[1].rows[-1].stop_token == stop
    assert len(world.endings[2].tokens) > 5


def test_the_model_length_bounds_the_output() -> None:
    world = World(max_model_len=20)
    world.add(long_answer(1, [1] * 15, 30))
    world.run()
    assert (len(world.endings[1].tokens), world.endings[1].finish) == (5, FinishReason.LENGTH)


def test_queue_time_is_reported_with_the_first_output() -> None:
    world = World(max_num_seqs=1)
    world.add(long_answer(1, [1], 3))
    world.add(long_answer(2, [2], 3))
    world.run()
    assert [row.queue_us for row in world.endings[2].rows] == [4_000_000, 0, 0]


def test_several_plans_in_flight_hold_different_sequences() -> None:
    world = World(in_flight=2, budget=4, max_num_seqs=4)
    for request_id in range(4):
        world.add(long_answer(request_id, [request_id + 1] * 3, 6))
    world.run()
    for request_id in range(4):
        expected = reference(long_answer(request_id, [request_id + 1] * 3, 6), 97, 256)[0]
        assert world.endings[request_id].tokens == expected


def decoding(stages: int, sequences: int) -> World:
    """A world in which all sequences decode, once the plans of the first steps have landed."""
    world = World(in_flight=stages, budget=64, max_num_seqs=16, num_blocks=200)
    for request_id in range(sequences):
        world.add(long_answer(request_id, [request_id + 1] * 3, 60))
    for _ in range(3 * stages):
        world.step()
    return world


@pytest.mark.parametrize(("stages", "sequences"), [(2, 8), (2, 7), (3, 7), (3, 2), (1, 5)])
def test_decodes_are_spread_over_the_plans_of_all_stages(stages: int, sequences: int) -> None:
    world = decoding(stages, sequences)
    for _ in range(20):
        world.step()
        sizes = [len(plan.slots) for plan in world.plans[-stages:]]
        assert sum(sizes) == sequences or sequences < stages
        assert max(sizes) <= -(-sequences // stages)


def test_plans_level_out_after_a_request_ends() -> None:
    world = decoding(2, 8)
    for request_id in (0, 1, 2):
        world.scheduler.cancel(request_id)
    for _ in range(6):
        world.step()
    assert sorted(len(plan.slots) for plan in world.plans[-2:]) == [2, 3]


def test_a_budget_below_the_number_of_sequences_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="max_num_batched_tokens"):
        Limits(8, 7, 100, 10, 97, frozenset({EOS}))


@pytest.mark.parametrize(
    ("fault", "finish", "reason"),
    [
        (NOT_FINITE, FinishReason.ERROR, "infinite or not a number"),
        (NO_TOKEN, FinishReason.UNFIT, "its grammar became too complex"),
    ],
)
def test_a_fault_of_one_sequence_ends_its_request_only(
    fault: int, finish: FinishReason, reason: str
) -> None:
    """A hidden state that is not finite, or a grammar that cannot be followed."""
    world = World()
    world.add(long_answer(1, [1, 2, 3]))
    world.add(long_answer(2, [4, 5, 6]))
    for at in range(2):
        plan = world.scheduler.schedule()
        assert plan is not None
        result = world.executor.submit(plan).result()
        if at:
            result.tokens[0] = fault
        world.scheduler.apply(plan, result)
    world.run()
    world.scheduler.check()
    assert world.endings[1].finish is finish
    assert reason in world.endings[1].rows[-1].error
    assert len(world.endings[1].tokens) == 1
    assert world.endings[2].finish is FinishReason.LENGTH
    assert len(world.endings[2].tokens) == 30


def test_a_plan_carries_as_many_grammars_as_fit_and_each_once() -> None:
    """The others register with later plans; sequences without a grammar pass them."""
    first, second = (letter * (MAX_PLAN_GRAMMAR_BYTES - 10) for letter in (b"a", b"b"))
    world = World(budget=64, max_num_seqs=6)
    wanted = [first, second, b"short", second, b"", first]
    for at, grammar in enumerate(wanted, 1):
        world.add(long_answer(at, [at, 2, 3], 6, grammar=grammar))
    registered: dict[int, bytes] = {}
    for step in range(2):
        plan = world.step()
        assert plan is not None
        assert plan.grammars == ([first, b"short"], [second])[step]
        for each in plan.registrations:
            grammar = plan.grammars[each.grammar - 1] if each.grammar else b""
            registered[each.slot] = grammar
            assert each.history == (array("i", [each.slot + 1, 2, 3]) if grammar else array("i"))
    assert registered == dict(enumerate(wanted))
    world.run()
    assert {len(ending.tokens) for ending in world.endings.values()} == {6}


def test_lower_priorities_run_first_and_are_preempted_last() -> None:
    """Equal ones go by their arrival."""
    world = World(max_num_seqs=1, by_priority=True)
    for request_id, priority in ((1, 3), (2, 0), (3, 3), (4, -1)):
        world.add(long_answer(request_id, [request_id, 2, 3], 2, priority=priority))
    ended: list[int] = []
    while world.scheduler.has_requests():
        world.step()
        new = [at for at, each in world.endings.items() if each.finish and at not in ended]
        ended += new
    assert ended == [4, 2, 1, 3]

    world = World(num_blocks=6, max_num_seqs=3, by_priority=True, prefix=False)
    world.add(long_answer(1, [7] * 30, 40))
    world.step()
    world.add(long_answer(2, PROMPT[:30], 40, priority=-1))
    while not world.endings[2].finish:
        world.step()
    assert world.scheduler.stats().preemptions == 1
    assert not world.endings[1].finish, "the first to come was not the one preempted"
    world.run()
    assert {len(ending.tokens) for ending in world.endings.values()} == {40}


def test_priorities_mean_nothing_where_requests_go_by_their_arrival() -> None:
    world = World(max_num_seqs=1)
    for request_id, priority in ((1, 3), (2, 0)):
        world.add(long_answer(request_id, [request_id, 2, 3], 2, priority=priority))
    world.step()
    world.step()
    assert world.endings[1].finish is FinishReason.LENGTH
    assert not world.endings[2].rows


def test_the_cost_of_masks_adds_up() -> None:
    world = World()
    world.add(long_answer(1, [1, 2, 3], 2))
    for _ in range(2):
        plan = world.scheduler.schedule()
        assert plan is not None
        result = world.executor.submit(plan).result()
        result.masks = (2, 0.5, 0.25)
        world.scheduler.apply(plan, result)
    stats = world.scheduler.stats()
    assert (stats.masks, stats.mask_seconds, stats.mask_wait_seconds) == (4, 1.0, 0.5)
