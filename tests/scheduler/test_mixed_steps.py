"""Prompt tokens beside decodes: learnt from step times, bounded by them, followed by the plans."""

from __future__ import annotations

import json
from random import Random

import pytest
from penstock.core import StepPlan
from penstock.scheduler.mixed_steps import FEWEST, STRETCH, MixedSteps

from tests.scheduler import mixed_cases
from tests.scheduler.harness import RandomDrafter, World, make_request

BUDGET = 256
DECODE, TOKEN = 0.010, 0.00025
"""Seconds of a step's decodes, and of a prompt token."""
BESIDE = 80
"""(STRETCH - 1) * DECODE / TOKEN"""


def learnt(decode: float = DECODE, token: float = TOKEN) -> MixedSteps:
    mixed = MixedSteps()
    mixed.ran(4, 0, decode)
    mixed.ran(0, 100, 100 * token)
    return mixed


def test_the_whole_budget_is_left_while_a_cost_is_unknown() -> None:
    mixed = MixedSteps()
    assert mixed.prompt_budget(4, BUDGET) == BUDGET
    mixed.ran(4, 0, DECODE)
    assert mixed.prompt_budget(4, BUDGET) == BUDGET
    mixed = MixedSteps()
    mixed.ran(0, 100, 100 * TOKEN)
    assert mixed.prompt_budget(4, BUDGET) == BUDGET


def test_a_step_lasts_so_many_decode_steps_at_most() -> None:
    assert learnt().prompt_budget(4, BUDGET) == BESIDE
    longest = DECODE + BESIDE * TOKEN
    assert longest == pytest.approx(STRETCH * DECODE)


def test_a_step_takes_the_fewest_tokens_even_where_they_last_longer() -> None:
    assert learnt(token=100 * TOKEN).prompt_budget(4, BUDGET) == FEWEST


@pytest.mark.parametrize("budget", [BESIDE - 1, FEWEST - 1, 0])
def test_a_step_takes_no_more_than_its_budget(budget: int) -> None:
    assert learnt().prompt_budget(4, budget) == budget
    assert learnt(token=100 * TOKEN).prompt_budget(4, budget) == min(budget, FEWEST)


def test_steps_without_a_time_and_short_chunks_teach_nothing() -> None:
    mixed = learnt()
    mixed.ran(4, 0, 0.0)
    mixed.ran(0, 100, 0.0)
    mixed.ran(0, 2, DECODE)
    assert mixed.prompt_budget(4, BUDGET) == BESIDE


def test_a_token_beside_decodes_costs_what_the_step_takes_longer() -> None:
    mixed = MixedSteps()
    mixed.ran(4, 100, DECODE + 100 * TOKEN)
    assert mixed.prompt_budget(4, BUDGET) == BUDGET, "how much of it the decodes took is unknown"
    mixed.ran(4, 0, DECODE)
    mixed.ran(4, 100, DECODE + 100 * TOKEN)
    assert mixed.prompt_budget(4, BUDGET) == BESIDE


def test_more_decodes_take_their_own_time() -> None:
    """One decode was fast; eight beside a prompt must not be bounded by that forever."""
    mixed = learnt()
    assert mixed.prompt_budget(64, BUDGET) == BESIDE, "that of fewer decodes, until it is known"
    assert mixed.prompt_budget(1, BUDGET) == BUDGET, "nothing is known of fewer"
    mixed.ran(64, BESIDE, 2 * DECODE + BESIDE * TOKEN)
    assert mixed.prompt_budget(64, BUDGET) == pytest.approx(2 * BESIDE, abs=1)
    assert mixed.prompt_budget(127, BUDGET) == mixed.prompt_budget(64, BUDGET), "of one size"
    assert mixed.prompt_budget(4, BUDGET) == BESIDE
    mixed.ran(64, 0, 3 * DECODE)
    assert mixed.prompt_budget(64, BUDGET) == pytest.approx(3 * BESIDE, abs=1), "measured alone"


def test_more_tokens_are_allowed_where_few_of_them_are_dear() -> None:
    """Experts: beside decodes, 32 tokens cost 1.5 or 4 times as much each as 256 alone."""
    for dearer, fewest in ((1.5, FEWEST * 3 // 2), (4, 2 * FEWEST)):
        mixed = learnt(token=10 * TOKEN)
        assert mixed.prompt_budget(4, BUDGET) == FEWEST
        mixed.ran(4, FEWEST, DECODE + FEWEST * dearer * 10 * TOKEN)
        assert mixed.prompt_budget(4, BUDGET) == pytest.approx(fewest, abs=1)


def test_costs_that_change_are_followed() -> None:
    mixed = learnt()
    for _ in range(30):
        mixed.ran(4, 0, 2 * DECODE)
    assert mixed.prompt_budget(4, BUDGET) == pytest.approx(2 * BESIDE, abs=1)
    for _ in range(30):
        mixed.ran(4, 100, 2 * DECODE + 150 * TOKEN)
    assert mixed.prompt_budget(4, BUDGET) == pytest.approx(2 * BESIDE / 1.5, abs=1)


def test_the_rule_is_that_of_its_second_statement() -> None:
    """The simulated engine is held to the same file, `crates/sim/src/batching/mixed_steps.rs`."""
    runs = json.loads(mixed_cases.PATH.read_text())
    assert runs == [[list(case) for case in run] for run in mixed_cases.draw_all()]
    for run in runs:
        mixed = MixedSteps()
        for decodes, prompts, nanos, asked, budget, answer in run:
            mixed.ran(decodes, prompts, nanos / 1e9)
            assert mixed.prompt_budget(asked, budget) == answer
    answers = [case[5] for run in runs for case in run if case[4] > case[5]]
    assert min(answers.count(FEWEST), answers.count(2 * FEWEST)) >= 5
    assert sum(answer > 2 * FEWEST for answer in answers) > 20


# Through the scheduler --------------------------------------------------------------------------


def seconds(plan: StepPlan) -> float:
    """Decodes are the rows of one token, or of one and its drafts."""
    drafts = plan.drafts or [0] * len(plan.lengths)
    prompts = sum(
        length for length, more in zip(plan.lengths, drafts, strict=True) if length > 1 + more
    )
    return (DECODE if prompts < len(plan.tokens) else 0.0) + TOKEN * prompts


def chunks(world: World, start: int) -> list[int]:
    """Lengths of the prompt chunks of plans from `start` on."""
    return [max(plan.lengths) for plan in world.plans[start:] if max(plan.lengths) > 1]


def started(**options: object) -> World:
    """After a prompt and a few decodes, with the request still running."""
    world = World(
        num_blocks=200,
        budget=BUDGET,
        max_model_len=1024,
        step_seconds=seconds,
        **options,  # type: ignore[arg-type]
    )
    world.add(make_request(0, [1] * 301, 100, ignore_eos=True))
    for _ in range(5):
        world.step()
    return world


def prompt() -> list[int]:
    return list(range(1, 91)) * 8


def test_a_long_prompt_is_computed_in_short_chunks_beside_decodes_only() -> None:
    world = started()
    assert chunks(world, 0) == [BUDGET, 45]
    began = len(world.plans)
    world.add(make_request(1, prompt(), 2, ignore_eos=True))
    world.run()
    assert chunks(world, began) == [BESIDE] * 9
    began = len(world.plans)
    world.add(make_request(2, prompt()[::-1], 2, ignore_eos=True))
    world.run()
    assert chunks(world, began) == [BUDGET, BUDGET, 720 - 2 * BUDGET]


def test_prompts_of_a_complete_batch_are_not_bounded() -> None:
    world = started(arrivals=False)
    began = len(world.plans)
    world.add(make_request(1, prompt(), 2, ignore_eos=True))
    world.run()
    assert chunks(world, began) == [BUDGET - 1, BUDGET - 1, 720 - 2 * (BUDGET - 1)]


def test_drafts_are_no_prompt_tokens() -> None:
    """Else a step that verifies many would say that a prompt token costs as much as a decode."""
    world = started(drafter=RandomDrafter(Random(1)), max_num_seqs=8)
    for key in range(1, 7):
        world.add(make_request(key, [key] * 40, 100, ignore_eos=True))
    for _ in range(9):
        world.step()
    began = len(world.plans)
    world.add(make_request(9, prompt(), 2, ignore_eos=True))
    world.run()
    assert chunks(world, began)[:8] == [BESIDE] * 8
