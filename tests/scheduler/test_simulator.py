"""The simulated engine's batcher does what the scheduler does, step for step.

Both play the same scenarios, drawn from seeds. A step is [tokens computed, running, waiting, blocks
used, preemptions, prefix query tokens, prefix hit tokens, outputs], an output [id, finish, tokens,
cached tokens].
"""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import pytest

from penstock.core import Request, StepPlan
from tests.scheduler.harness import World, make_request

_native = pytest.importorskip(
    "penstock._native", reason="the extension is not built: run `make install`"
)

MAX_MODEL_LEN = 130
VOCAB = 1000
FINISHES = {0, 1, 2, 3, 5, 6}


def draw_profile(draw: Random) -> dict[str, Any]:
    block_size = draw.choice([16, 16, 32])
    max_num_seqs = draw.choice([1, 3, 6, 6])
    return {
        "num_blocks": draw.choice([144, 144, 160, 192, 400]) // block_size,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw.choice([0, 20, 50, 100]),
        "max_queue": draw.choice([3, 100, 100]),
        "prefix_caching": draw.random() < 0.8,
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": VOCAB,
        "timing": draw_timing(draw),
    }


def draw_timing(draw: Random) -> dict[str, Any]:
    """Microseconds that depend on numbers of decodes and prompt tokens only: what is learnt from
    them bounds the prompt tokens of mixed steps.
    """
    return {
        "base_us": draw.choice([0, 900, 9000]),
        "decode_us": [[1, draw.choice([0, 300, 4000])]],
        "prompt_us_per_token": draw.choice([0, 170, 170, 2500]),
        "decode_us_per_context_ktoken": 0,
        "prompt_us_per_context_ktoken": 0,
    }


def step_seconds(timing: dict[str, Any], plan: StepPlan) -> float:
    decodes = sum(length == 1 for length in plan.lengths)
    prompts = len(plan.tokens) - decodes
    micros = timing["base_us"] + timing["decode_us"][0][1] * decodes
    return 1000 * (micros + timing["prompt_us_per_token"] * prompts) / 1e9


def draw_request(draw: Random, request_id: int) -> dict[str, Any]:
    """Mostly plain requests over two stems: prefixes are shared, blocks run out, prompts repeat.
    A prompt is a list of runs of consecutive ids, (first, count).
    """
    stem = [draw.choice([1, 301]), draw.choice([0, 0, 16, 32, 49, 64, 90])]
    tail = [draw.choice([601, 701]), draw.choice([1, 9, 16, 28, 60])]
    return {
        "id": request_id,
        "prompt": [stem, tail],
        "max_tokens": draw.choice([1, 30, 60, 60]),
        "skip_prefix_cache": draw.random() < 0.2,
        "cache_salt": draw.choice(["", "", "", "salt"]),
        "pool": draw.random() < 0.2,
        "arrives": draw.choice([0, 0, 1, 2, 9, 40]),
        "cancelled": draw.choice([None, None, None, None, 3, 20]),
    }


def draw_scenario(seed: int) -> dict[str, Any]:
    draw = Random(seed)
    profile = draw_profile(draw)
    requests = [draw_request(draw, request_id) for request_id in range(draw.randint(3, 14))]
    return {"profile": profile, "requests": requests}


def play(scenario: dict[str, Any]) -> list[list[Any]]:
    """The scenario on the real scheduler, one plan in flight."""
    profile, requests = scenario["profile"], scenario["requests"]
    world = World(
        num_blocks=profile["num_blocks"],
        block_size=profile["block_size"],
        max_num_seqs=profile["max_num_seqs"],
        budget=profile["max_num_batched_tokens"],
        max_queue=profile["max_queue"],
        prefix=profile["prefix_caching"],
        max_model_len=MAX_MODEL_LEN,
        vocab=VOCAB,
        step_seconds=partial(step_seconds, profile["timing"]),
    )
    steps: list[list[Any]] = []
    last = max(request["arrives"] for request in requests)
    while len(steps) <= last or world.scheduler.has_requests():
        number = len(steps)
        seen = {key: len(ending.rows) for key, ending in world.endings.items()}
        for request in requests:
            if request["arrives"] == number:
                world.add(to_request(request))
            if request["cancelled"] == number:
                world.scheduler.cancel(request["id"])
        steps.append(record(world, seen, world.step()))
    return steps


def to_request(request: dict[str, Any]) -> Request:
    return make_request(
        request["id"],
        [first + at for first, count in request["prompt"] for at in range(count)],
        request["max_tokens"],
        ignore_eos=True,
        read_prefix_cache=not request["skip_prefix_cache"],
        cache_salt=request["cache_salt"].encode(),
        pool=request["pool"],
    )


def record(world: World, seen: dict[int, int], plan: StepPlan | None) -> list[Any]:
    stats = world.scheduler.stats()
    outputs = [
        [key, int(row.finish), len(row.tokens), row.cached_tokens]
        for key, ending in sorted(world.endings.items())
        for row in ending.rows[seen.get(key, 0) :]
    ]
    return [
        len(plan.tokens) if plan else 0,
        stats.running,
        stats.waiting,
        stats.blocks_used,
        stats.preemptions,
        stats.prefix_query_tokens,
        stats.prefix_hit_tokens,
        outputs,
    ]


@pytest.mark.parametrize("scenarios", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_the_simulator_batches_as_the_scheduler_does(scenarios: int) -> None:
    preemptions = hits = 0
    finishes: set[int] = set()
    for seed in range(scenarios):
        scenario = draw_scenario(seed)
        real = play(scenario)
        simulated = json.loads(_native.sim_replay(json.dumps(scenario)))
        for number, (expected, got) in enumerate(zip(real, simulated, strict=False)):
            assert got == expected, f"seed {seed}, step {number}"
        assert len(simulated) == len(real), f"seed {seed}"
        preemptions += real[-1][4]
        hits += real[-1][6]
        finishes |= {row[1] for step in real for row in step[7]}
    # The scenarios see everything that the batcher models.
    assert preemptions > scenarios / 4
    assert hits > 15 * scenarios
    assert finishes == FINISHES


def test_a_scenario_that_is_not_one_is_refused() -> None:
    with pytest.raises(ValueError, match="missing field"):
        _native.sim_replay("{}")
