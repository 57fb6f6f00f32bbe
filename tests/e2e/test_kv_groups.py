"""Tiers behind each family, and thoroughly behind a model whose layers have different windows: what
is computed after a load is what an engine without tiers computes, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM
from tests.e2e.server import eventually
from tests.e2e.test_kv_tiers import (
    SIZES,
    Answers,
    Open,
    Prompts,
    answers,
    forget,
    prompt,
    settle,
    stats,
)
from tests.e2e.test_parallel import tiny
from tests.families import FAMILIES

PROMPTS = [
    prompt(110),
    prompt(110)[:70] + prompt(30, seed=2),
    prompt(64, seed=3),
    prompt(65, seed=3),
    prompt(17),
]
TIERS = [["ram:8MiB"], ["disk:{},64MiB"], ["ram:8MiB", "disk:{},64MiB"]]
GRIDS: list[dict[str, Any]] = [
    {},
    *(
        {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "distributed_executor_backend": "mp",
            "threads": 1,
        }
        for tp, pp in [(2, 1), (1, 2)]
    ),
]
OTHERS = [name for name in FAMILIES if name not in ("alternating", "llama4", "mistral")]
MANY = [prompt(110, seed) for seed in range(8)]


@pytest.fixture
def opened(repository: Path, tmp_path: Path) -> Iterator[Open]:
    made: list[LLM] = []

    @functools.cache
    def model(family: str) -> Path:
        return tiny(repository, tmp_path, family)[0]

    def make(*tiers: str, family: str = "alternating", **options: Any) -> LLM:
        named = {"kv_tier": [tier.format(tmp_path / "kv") for tier in tiers]} if tiers else {}
        made.append(LLM(str(model(family)), **{"dtype": "float32", **SIZES, **named, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def audited(llm: LLM, prompts: Prompts = PROMPTS, tokens: int = 6) -> Answers:
    """Answers, after which every block is accounted for and free."""
    found = answers(llm, prompts, tokens)
    settle(llm)
    scheduler = llm._started.scheduler
    scheduler.check()
    assert scheduler.stats().blocks_used == 0
    return found


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("searched", [True, False])
def test_hits_and_parts_of_hits_change_nothing(
    opened: Open, tiers: list[str], grid: dict[str, Any], searched: bool
) -> None:
    check_hits(opened(**grid), opened(*tiers, enable_prefix_caching=searched, **grid))


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("family", ["mistral", "llama4"])
def test_windows_only_and_chunks(opened: Open, tiers: list[str], family: str) -> None:
    check_hits(opened(family=family), opened(*tiers, family=family))


@pytest.mark.parametrize("family", OTHERS)
def test_every_family(opened: Open, family: str) -> None:
    check_hits(opened(family=family), opened(*TIERS[-1], family=family))


@pytest.mark.parametrize("grid", GRIDS[1:])
@pytest.mark.parametrize("family", ["deepseek3", "gptoss"])
def test_latents_and_sinks_of_ranks(opened: Open, family: str, grid: dict[str, Any]) -> None:
    check_hits(opened(family=family, **grid), opened(*TIERS[-1], family=family, **grid))


def check_hits(plain: LLM, llm: LLM) -> None:
    expected = audited(plain)

    def hits() -> int:
        assert audited(llm) == expected
        forget(llm)
        return stats(llm, 0).hit_tokens

    hits()
    assert eventually(hits, "a hit") > 0
    assert not stats(llm, 0).errors


@pytest.mark.parametrize("grid", GRIDS[:2])
def test_a_restart_finds_what_is_on_disk(opened: Open, grid: dict[str, Any]) -> None:
    expected = audited(opened(**grid))
    first = opened("disk:{},64MiB", **grid)
    assert audited(first) == expected
    first.close()
    second = opened("disk:{},64MiB", **grid)
    assert audited(second) == expected
    assert stats(second, 0).hit_tokens > 0


@pytest.mark.parametrize("tiers", TIERS)
def test_a_pool_that_is_too_small_for_all(opened: Open, tiers: list[str]) -> None:
    expected = audited(opened(), MANY, tokens=130)
    llm = opened(*tiers, kv_cache_memory_bytes="1MiB")
    for _ in range(3):
        assert audited(llm, MANY, tokens=130) == expected
        forget(llm)
    assert llm._started.scheduler.stats().preemptions > 0
    assert stats(llm, 0).hit_tokens > 0


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_a_load_that_fails_is_computed(opened: Open, tmp_path: Path, damage: str) -> None:
    expected = audited(opened())
    llm = opened("disk:{},64MiB")
    audited(llm)
    forget(llm)
    for file in (tmp_path / "kv").rglob("*.h1.*"):
        data = bytearray(file.read_bytes())
        data[5000] ^= 1
        file.unlink()
        if damage == "flipped":
            file.write_bytes(data)
    assert audited(llm) == expected
    forget(llm)
    assert audited(llm) == expected
