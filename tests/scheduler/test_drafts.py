"""Drafts change the number of steps, and nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from random import Random

import pytest

from penstock.core import FinishReason, Request
from tests.scheduler.harness import RandomDrafter, World, make_request

PROMPT = [(3 * at) % 90 + 1 for at in range(40)]


class Oracle:
    """Proposes `count` tokens of a known output."""

    active = True

    def __init__(self, output: Sequence[int], count: int, prompt_len: int = len(PROMPT)) -> None:
        self.output, self.count, self.prompt_len = output, count, prompt_len
        self.asked: list[int] = []

    def propose(self, tokens: array[int], most: int) -> Sequence[int]:
        self.asked.append(most)
        at = len(tokens) - self.prompt_len
        return self.output[at : at + min(self.count, most)]


def played(drafter: object, request: Request, **options: object) -> World:
    world = World(drafter=drafter, **options)  # type: ignore[arg-type]
    world.add(request)
    world.run()
    ending = world.endings[request.id]
    assert (ending.tokens, ending.finish) == world.reference(request)
    return world


def whole(max_tokens: int = 30) -> tuple[Request, list[int]]:
    request = make_request(1, PROMPT, max_tokens, ignore_eos=True, logprobs=0)
    return request, World().reference(request)[0]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_right_drafts_save_steps(count: int) -> None:
    request, output = whole()
    world = played(Oracle(output, count), request)
    decodes = -(-(len(output) - 1) // (count + 1))
    assert len(world.plans) == 2 + decodes


def test_wrong_drafts_cost_rows_and_change_nothing() -> None:
    request, output = whole()
    wrong = [(token + 1) % 97 for token in output]
    world = played(Oracle(wrong, 3), request)
    assert len(world.plans) == 2 + len(output) - 1
    assert [row.tokens for row in world.endings[1].rows] == [array("i", [t]) for t in output]


def test_each_token_has_its_row_of_log_probabilities() -> None:
    request, output = whole()
    world = played(RandomDrafter(Random(3)), request)
    rows = [row for output in world.endings[1].rows for row in output.logprobs]
    assert [row[2][0][0] for row in rows] == output
    assert any(len(row.tokens) > 1 for row in world.endings[1].rows)


def stops_at(place: int) -> Callable[[list[int]], int]:
    return lambda output: next(at for at in range(place, 30) if output[at] not in output[:at])


def test_a_stop_token_among_accepted_drafts_ends_the_output() -> None:
    _, output = whole()
    at = stops_at(4)(output)
    stopped = make_request(1, PROMPT, 30, ignore_eos=True, stop_token_ids=(output[at],))
    world = played(Oracle(output, 7), stopped)
    ending = world.endings[1]
    assert (ending.finish, ending.rows[-1].stop_token) == (FinishReason.STOP, output[at])
    assert ending.tokens == output[: at + 1]


def test_a_stop_token_below_min_tokens_is_passed_within_accepted_drafts() -> None:
    _, output = whole()
    at = stops_at(4)(output)
    request = make_request(
        1, PROMPT, 30, ignore_eos=True, stop_token_ids=(output[at],), min_tokens=at + 3
    )
    played(Oracle(output, 7), request)


def test_drafts_end_before_the_length_limit() -> None:
    request, output = whole(10)
    drafter = Oracle(output, 100)
    played(drafter, request, budget=64)
    assert drafter.asked == [8], "one token is sampled in any case"


def test_drafts_take_what_prompts_leave_of_the_budget() -> None:
    request, output = whole()
    world = World(budget=10, drafter=Oracle(output, 100))
    world.add(request)
    for _ in range(4):
        world.step()
    world.add(make_request(2, [9] * 30, 1))
    plans = [world.step() for _ in range(5)]
    assert [list(plan.lengths) for plan in plans if plan][:4] == [[1, 9], [1, 9], [1, 9], [7, 3]]
    assert [list(plan.drafts) for plan in plans if plan][:4] == [[], [], [], [6, 0]]


def test_drafts_take_no_blocks_of_others() -> None:
    world = World(num_blocks=6, max_num_seqs=2, prefix=False, drafter=RandomDrafter(Random(1)))
    requests = [make_request(number, [number] * 15, 30, ignore_eos=True) for number in (1, 2)]
    for request in requests:
        world.add(request)
    world.run()
    for request in requests:
        assert world.endings[request.id].tokens == world.reference(request)[0]
    assert world.scheduler.stats().preemptions == 0, "6 blocks hold both"


def test_blocks_of_accepted_drafts_are_found_again() -> None:
    request, output = whole(60)
    world = played(Oracle(output, 7), request)
    conversation = make_request(2, [*PROMPT, *output, 5])
    world.add(conversation)
    world.run()
    assert world.endings[2].rows[0].cached_tokens == 96
    assert world.endings[2].tokens == world.reference(conversation)[0]
