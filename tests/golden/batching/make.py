"""Writes scheduler.json: what the scheduler did, step for step, with arrivals drawn from fixed
seeds.

    python -m tests.golden.batching.make        (from the root of the repository)

`crates/sim` must do the same. A prompt is a list of runs, each [first id, count] of consecutive
ids. A step is [tokens computed, running, waiting, blocks used, preemptions, prefix query tokens,
prefix hit tokens, outputs], an output [id, finish, tokens, cached tokens].
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from penstock.core import StepPlan

from tests.scheduler.harness import World, make_request

FILE = Path(__file__).with_name("scheduler.json")
SCENARIOS = 36
MAX_MODEL_LEN = 130
VOCAB = 1000


def draw_limits(draw: Random) -> dict[str, Any]:
    block_size = draw.choice([16, 16, 32])
    max_num_seqs = draw.choice([1, 3, 6, 6])
    return {
        "num_blocks": draw.choice([144, 144, 160, 192, 400]) // block_size,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw.choice([0, 20, 50, 100]),
        "max_queue": draw.choice([3, 100, 100]),
        "prefix_caching": draw.random() < 0.8,
    }


def draw_request(draw: Random, request_id: int) -> dict[str, Any]:
    """Mostly plain requests over two stems: prefixes are shared, blocks run out, prompts repeat."""
    stem = [draw.choice([1, 301]), draw.choice([0, 0, 16, 32, 49, 64, 90])]
    tail = [draw.choice([601, 701]), draw.choice([1, 9, 16, 28, 60])]
    return {
        "id": request_id,
        "prompt": [stem, tail],
        "max_tokens": draw.choice([1, 30, 60, 60]),
        "skip_prefix_cache": draw.random() < 0.2,
        "cache_salt": draw.choice(["", "", "", "salt"]),
        "arrives": draw.choice([0, 0, 1, 2, 9, 40]),
        "cancelled": draw.choice([None, None, None, None, 3, 20]),
    }


def play(limits: dict[str, Any], requests: list[dict[str, Any]]) -> list[list[Any]]:
    world = World(
        num_blocks=limits["num_blocks"],
        block_size=limits["block_size"],
        max_num_seqs=limits["max_num_seqs"],
        budget=limits["max_num_batched_tokens"],
        max_queue=limits["max_queue"],
        prefix=limits["prefix_caching"],
        max_model_len=MAX_MODEL_LEN,
        vocab=VOCAB,
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


def to_request(request: dict[str, Any]) -> Any:
    return make_request(
        request["id"],
        [first + at for first, count in request["prompt"] for at in range(count)],
        request["max_tokens"],
        ignore_eos=True,
        read_prefix_cache=not request["skip_prefix_cache"],
        cache_salt=request["cache_salt"].encode(),
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


def scenario(seed: int) -> dict[str, Any]:
    draw = Random(seed)
    limits = draw_limits(draw)
    requests = [draw_request(draw, request_id) for request_id in range(draw.randint(3, 14))]
    return {"limits": limits, "requests": requests, "steps": play(limits, requests)}


def text() -> str:
    """One scenario a line."""
    scenarios = [json.dumps(scenario(seed), separators=(",", ":")) for seed in range(SCENARIOS)]
    return "[\n" + ",\n".join(scenarios) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text())
