"""Prefixes that come back from RAM, disk and a remote store to the torch backend: the tokens of an
engine without tiers, whatever happened to what was stored.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM
from tests.e2e import test_kv_tiers as kv
from tests.e2e.server import eventually
from tests.e2e.stores import Redis
from tests.e2e.test_kv_tiers import PROMPTS, SIZES, Answers, Open, answers, cached, forget, stats
from tests.e2e.test_parallel import tiny

FAMILIES = ["llama", "alternating", "deepseek2"]
"""One KV group, a window beside full attention, and latents."""
MARGIN = 1e-4
"""Between log-probabilities: products of torch depend on how a prompt is cut into steps."""


@pytest.fixture
def opened(repository: Path, tmp_path: Path) -> Iterator[Open]:
    models = {name: tiny(repository, tmp_path, name)[0] for name in FAMILIES}
    made: list[LLM] = []

    def make(*tiers: str, family: str = "llama", **options: Any) -> LLM:
        named = {"kv_tier": list(tiers)} if tiers else {}
        sizes = {"dtype": "float32", "device": "torch", "threads": 1, **SIZES}
        made.append(LLM(str(models[family]), **{**sizes, **named, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"disk:{tmp_path / 'kv'},64MiB"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Redis]:
    made = Redis(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def assert_same(found: Answers, expected: Answers) -> None:
    """Equal tokens, and log-probabilities within the margin."""
    assert [tokens for tokens, _, _ in found] == [tokens for tokens, _, _ in expected]
    for (_, rows, _), (_, others, _) in zip(found, expected, strict=True):
        for row, other in zip(rows, others, strict=True):
            pairs = [(row[token].logprob, other[token].logprob) for token in row.keys() & other]
            assert pairs
            assert all(abs(one - two) <= MARGIN for one, two in pairs)


def audit(llm: LLM) -> None:
    """Every block is accounted for and free."""
    kv.settle(llm)
    scheduler = llm._started.scheduler
    scheduler.check()
    assert scheduler.stats().blocks_used == 0


def assert_hits_change_nothing(opened: Open, place: str, family: str, tiers: list[str]) -> None:
    """Answers from the tiers, `disk` at `place`, are those of an engine without any."""
    expected = answers(opened(family=family), PROMPTS)
    llm = opened(*(place if tier == "disk" else tier for tier in tiers), family=family)
    for _ in range(3):
        assert_same(answers(llm, PROMPTS), expected)
        audit(llm)
        forget(llm)
    eventually(lambda: (forget(llm), cached(llm, PROMPTS[:1]))[1] == [96], "a hit")
    assert stats(llm, 0).hit_tokens > 0
    assert not stats(llm, 0).errors
    llm.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tiers", [["ram:8MiB"], ["disk"], ["ram:8MiB", "disk"]])
def test_hits_change_nothing(opened: Open, place: str, family: str, tiers: list[str]) -> None:
    assert_hits_change_nothing(opened, place, family, tiers)


def test_hits_are_counted_for_the_tier_they_came_from(opened: Open, place: str) -> None:
    llm = opened("ram:8MiB", place)
    answers(llm, PROMPTS)
    forget(llm)
    eventually(lambda: (forget(llm), cached(llm, PROMPTS[:1]))[1] == [96], "a hit in RAM")
    assert stats(llm, 0).hit_tokens > 0
    assert stats(llm, 1).hit_tokens == 0
    llm.close()
    other = opened("ram:8MiB", place)
    eventually(lambda: (forget(other), cached(other, PROMPTS[:1]))[1] == [96], "a hit on disk")
    assert stats(other, 1).hit_tokens >= 96


def test_a_restart_finds_what_is_on_disk(opened: Open, place: str) -> None:
    first = opened(place)
    expected = answers(first, PROMPTS)
    first.close()
    second = opened(place)
    kv.assert_cached(second)
    assert_same(answers(second, PROMPTS), expected)


def test_the_native_decoder_and_other_numerics_share_nothing(opened: Open, place: str) -> None:
    """Blocks of both have the same size, and their numbers another order."""
    llm = opened(place)
    answers(llm, PROMPTS)
    kv.settle(llm)
    for options in ({"device": "cpu"}, {"kv_cache_dtype": "bfloat16"}, {"block_size": 32}):
        assert cached(opened(place, **options), PROMPTS[:1]) == [0], options
    kv.assert_cached(opened(place))


def test_a_redis_is_shared_by_two_engines(opened: Open, store: Redis) -> None:
    one, other = opened(store.place()), opened(store.place())
    expected = answers(one, PROMPTS)
    kv.settle(one)
    assert store.names() > 0
    eventually(lambda: (forget(other), cached(other, PROMPTS[:1]))[1] == [96], "a hit")
    assert_same(answers(other, PROMPTS), expected)
    assert stats(other, 0).hit_tokens >= 96


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_damaged_block_is_a_miss(opened: Open, place: str, tmp_path: Path, damage: str) -> None:
    first = opened(place)
    expected = answers(first, PROMPTS)
    first.close()
    drawn = random.Random(4)
    for file in kv.part_files(tmp_path / "kv"):
        data = bytearray(file.read_bytes())
        if damage == "flip":
            data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
        else:
            del data[drawn.randrange(len(data)) :]
        file.write_bytes(data)
    second = opened(place)
    assert_same(answers(second, PROMPTS), expected)
    assert eventually(lambda: stats(second, 0).quarantined_chunks, "a chunk in quarantine")
    forget(second)
    assert_same(answers(second, PROMPTS), expected)


def test_one_rank_reads_what_two_wrote(opened: Open, place: str) -> None:
    grid = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    two = opened(place, **grid)
    expected = answers(two, PROMPTS)
    two.close()
    one = opened(place)
    kv.assert_cached(one)
    assert_same(answers(one, PROMPTS), expected)


@pytest.mark.parametrize(("family", "tp", "pp"), [("alternating", 1, 2), ("deepseek2", 2, 2)])
def test_ranks_move_their_parts(opened: Open, place: str, family: str, tp: int, pp: int) -> None:
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "family": family}
    options = {**sizes, "distributed_executor_backend": "mp"}
    expected = answers(opened(family=family), PROMPTS)
    llm = opened("ram:8MiB", place, **options)
    for _ in range(3):
        assert_same(answers(llm, PROMPTS), expected)
        forget(llm)
    assert stats(llm, 0).hit_tokens > 0
    llm.close()
    again = opened(place, **options)
    eventually(lambda: (forget(again), cached(again, PROMPTS[:1]))[1] == [96], "a hit")
    assert_same(answers(again, PROMPTS), expected)


def test_a_tier_that_cannot_be_opened_is_named(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=str(tmp_path / "file")):
        opened(f"disk:{tmp_path / 'file'},64MiB")
