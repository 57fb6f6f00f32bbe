"""Prompt tokens beside decodes: learnt from step times, bounded by them, followed by the plans."""

from __future__ import annotations

from random import Random

from penstock.core import FinishReason, StepPlan
from tests.scheduler.harness import RandomDrafter, World, make_request

BUDGET = 256
DECODE, TOKEN = 0.010, 0.00025
"""Seconds of a step's decodes, and of a prompt token."""
BESIDE = 80
"""Prompt tokens that lengthen a step to three decode steps."""
SETTLED = 16
"""Steps of a device whose times do not vary, after which its costs are known."""


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


def settled(lengths: list[int]) -> list[int]:
    """Without those by which the costs were learnt, and the last ones: a rest, drafts."""
    return lengths[SETTLED:-3]


def started(*, measured: bool = True, **options: object) -> World:
    """After a prompt, with the request still running, and a few decodes if they are `measured`."""
    world = World(
        num_blocks=1000,
        budget=BUDGET,
        max_model_len=4096,
        **{"step_seconds": seconds, **options},  # type: ignore[arg-type]
    )
    world.add(make_request(0, [1] * 301, 400, ignore_eos=True))
    for _ in range(5 if measured else 2):
        world.step()
    return world


def serve(world: World, key: int) -> None:
    """Steps until one request has ended."""
    while world.endings[key].finish is FinishReason.NONE:
        world.step()


def prompt() -> list[int]:
    return list(range(1, 91)) * 40


def test_a_long_prompt_is_computed_in_short_chunks_beside_decodes_only() -> None:
    world = started()
    assert chunks(world, 0) == [BUDGET, 45]
    began = len(world.plans)
    world.add(make_request(1, prompt(), 2, ignore_eos=True))
    serve(world, 1)
    found = settled(chunks(world, began))
    assert len(found) > 20
    assert all(0.8 * BESIDE < length <= BESIDE for length in found)
    world.run()
    began = len(world.plans)
    world.add(make_request(2, prompt()[::-1], 2, ignore_eos=True))
    world.run()
    assert set(chunks(world, began)[:-1]) == {BUDGET}


def test_the_decodes_alone_are_measured_first() -> None:
    """Two steps of them, whatever waits: the newcomer's chunks follow."""
    world = started(measured=False)
    began = len(world.plans)
    world.add(make_request(1, prompt(), 2, ignore_eos=True))
    for _ in range(4):
        world.step()
    assert [max(plan.lengths) > 1 for plan in world.plans[began:]] == [False, False, True, True]


def test_a_backend_without_step_times_is_not_bounded() -> None:
    world = started(step_seconds=lambda plan: 0.0)
    began = len(world.plans)
    world.add(make_request(1, prompt(), 2, ignore_eos=True))
    serve(world, 1)
    assert set(chunks(world, began)[:-1]) == {BUDGET - 1}


def test_a_device_with_a_large_fixed_cost_gets_its_whole_budget() -> None:
    """An H100 that launches steps with prompts kernel by kernel: 11 ms beside steps of 1.3 ms."""

    def launched(plan: StepPlan) -> float:
        prompts = sum(length for length in plan.lengths if length > 1)
        return 0.0013 + (0.011 + 3e-6 * prompts if prompts else 0.0)

    world = started(step_seconds=launched)
    began = len(world.plans)
    world.add(make_request(1, prompt(), 2, ignore_eos=True))
    serve(world, 1)
    assert set(chunks(world, began)[12:-1]) == {BUDGET - 1}


def test_prompts_of_a_complete_batch_are_not_bounded() -> None:
    world = started(arrivals=False)
    began = len(world.plans)
    world.add(make_request(1, prompt()[:720], 2, ignore_eos=True))
    world.run()
    assert chunks(world, began) == [BUDGET - 1, BUDGET - 1, 720 - 2 * (BUDGET - 1)]


def test_drafts_are_no_prompt_tokens() -> None:
    """Else a step that verifies many would say that a prompt token costs as much as a decode."""
    world = started(drafter=RandomDrafter(Random(1)), max_num_seqs=8)
    for key in range(1, 7):
        world.add(make_request(key, [key] * 40, 500, ignore_eos=True))
    for _ in range(12):
        world.step()
    began = len(world.plans)
    world.add(make_request(9, prompt(), 2, ignore_eos=True))
    serve(world, 9)
    found = settled(chunks(world, began))
    assert len(found) > 10
    assert all(0.8 * BESIDE < length <= BESIDE for length in found)
