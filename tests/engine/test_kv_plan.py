"""KV blocks from what the ranks have loaded: one rule for all, whatever the groups and cuts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import KvGroup, KvSpec, Loaded, Numerics, PenstockError, WorkerFacts
from penstock.engine.facts import join_facts
from penstock.engine.sizing import (
    CEILING,
    FLOOR,
    MIB,
    KvNeeds,
    check_ram_tier,
    kv_needs,
    plan_kv,
    size_kv,
)
from tests.engine.test_sizing import FACTS, config, model_info

# SmolLM2-135M: 30 layers, 3 KV heads of 64, bfloat16.
TOKEN = 23_040
BLOCK = 32 * TOKEN
SMALL = KvNeeds(
    specs=[KvSpec(32, (KvGroup(tuple(range(30)), BLOCK),))],
    model_len=8192,
    max_num_seqs=64,
    step_tokens=256,
    chunk_tokens=0,
    available=16 * 1024 * MIB,
    asked_bytes=None,
    asked_len=None,
)


def test_two_sequences_of_full_length_fit_by_default() -> None:
    plan = plan_kv(SMALL)
    assert plan.bytes == 2 * 8192 * TOKEN
    assert (plan.max_model_len, plan.notice) == (8192, "")
    assert (plan.blocks, plan.block_bytes) == ((512,), BLOCK)


def test_a_short_model_gets_the_floor_and_a_long_one_the_ceiling() -> None:
    assert 0 <= FLOOR - plan_kv(replace(SMALL, model_len=1024)).bytes < BLOCK
    assert 0 <= CEILING - plan_kv(replace(SMALL, model_len=32_768)).bytes < BLOCK


def test_never_more_than_all_sequences_can_fill() -> None:
    assert plan_kv(replace(SMALL, max_num_seqs=1, model_len=64)).num_blocks == 2


def test_memory_that_serves_nothing_else_is_taken() -> None:
    """That of a GPU; not more than all sequences can fill."""
    own = replace(SMALL, available=3 * CEILING, own_memory=True)
    assert 0 <= 3 * CEILING - plan_kv(own).bytes < BLOCK
    assert plan_kv(replace(own, max_num_seqs=1, model_len=64)).num_blocks == 2
    facts = replace(FACTS, own_memory=True)
    loaded = [Loaded(facts, SMALL.specs[0], 10**9)] * 2
    assert kv_needs(config(), model_info(), loaded).own_memory
    assert join_facts([facts, facts]).own_memory


def test_never_more_than_half_of_what_is_free() -> None:
    plan = plan_kv(replace(SMALL, available=400 * MIB))
    assert plan.bytes <= 200 * MIB
    assert plan.max_model_len == 8192


def test_the_length_is_lowered_with_a_notice_when_memory_is_short() -> None:
    plan = plan_kv(replace(SMALL, available=100 * MIB))
    assert plan.max_model_len == plan.num_blocks * 32 < 8192
    assert f"lowered from 8192 to {plan.max_model_len}" in plan.notice


def test_more_than_the_free_memory_is_refused_with_the_numbers() -> None:
    asked = replace(SMALL, available=100 * MIB, asked_bytes=101 * MIB)
    with pytest.raises(
        PenstockError, match=r"--kv-cache-memory-bytes: 105906176 bytes .* the 104857600 .* lower"
    ):
        plan_kv(asked)
    assert plan_kv(replace(asked, asked_bytes=100 * MIB)).num_blocks > 0


def test_a_ram_tier_must_fit_beside_the_kv_cache() -> None:
    """Two ranks with half of each block; each has 100 MiB, of which its pool takes 40."""
    half = KvSpec(32, (KvGroup(tuple(range(30)), BLOCK // 2),))
    loaded = [Loaded(FACTS, half, 100 * MIB)] * 2
    needs = replace(SMALL, specs=[half, half], available=100 * MIB, asked_bytes=40 * MIB)
    plan = plan_kv(needs)
    check_ram_tier(config(kv_tier="ram:118MiB"), plan, loaded)
    with pytest.raises(PenstockError, match=r"--kv-tier ram: 123 MiB do .* at most ram:12"):
        check_ram_tier(config(kv_tier="ram:0.12GiB"), plan, loaded)
    check_ram_tier(config(kv_tier="ram:1GiB", device="other"), plan, loaded)


def test_a_ram_tier_behind_gpus_must_fit_into_the_memory_of_their_hosts() -> None:
    """Two ranks with half of each block: the memory of the GPUs does not count."""
    half = KvSpec(32, (KvGroup(tuple(range(30)), BLOCK // 2),))
    facts = replace(FACTS, own_memory=True, host_memory=60 * MIB)
    loaded = [Loaded(FACTS, half, 100 * MIB), Loaded(facts, half, 1000 * MIB)]
    plan = plan_kv(replace(SMALL, specs=[half, half], available=100 * MIB))
    on_gpus = config(kv_tier="ram:118MiB", device="cuda")
    check_ram_tier(on_gpus, plan, loaded)
    with pytest.raises(
        PenstockError,
        match=r"a rank would keep 61 MiB, and its host has 60 MiB .* at most ram:120MiB",
    ):
        check_ram_tier(config(kv_tier="ram:0.12GiB", device="cuda"), plan, loaded)


def test_a_length_that_was_asked_for_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        PenstockError, match=r"--max-model-len 8192 needs 188743680 bytes .* there are 52428800"
    ):
        plan_kv(replace(SMALL, asked_len=8192, asked_bytes=50 * MIB))


def test_a_shorter_length_fits_where_the_full_one_does_not() -> None:
    plan = plan_kv(replace(SMALL, asked_len=1000, asked_bytes=50 * MIB))
    assert (plan.max_model_len, plan.notice) == (1000, "")


def test_asked_bytes_that_hold_no_block_are_refused() -> None:
    with pytest.raises(
        PenstockError,
        match=r"--kv-cache-memory-bytes: 1048 bytes hold no block, one block of 32 tokens takes "
        r"737280",
    ):
        plan_kv(replace(SMALL, asked_bytes=1048))


def test_free_memory_for_no_block_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        PenstockError,
        match=r"1048576 bytes of memory are free after loading.* one block of 32 tokens takes "
        r"737280"
        r"\. Free memory, or set --kv-cache-memory-bytes",
    ):
        plan_kv(replace(SMALL, available=MIB))
    with pytest.raises(PenstockError, match=r"^0 bytes of the device.*--max-num-batched-tokens"):
        plan_kv(replace(SMALL, available=0, own_memory=True))


# Several groups and ranks ---------------------------------------------------------------------


def rank(full: int, windowed: int, window: int = 96) -> KvSpec:
    """Two groups, with so many bytes in a block of 16 tokens."""
    return KvSpec(16, (KvGroup((0,), full), KvGroup((1,), windowed, window)))


UNEVEN = KvNeeds([rank(100, 300), rank(200, 0)], 1024, 4, 64, 0, 1 << 40, None, None)
HELD = 4 * ((96 + 64) // 16 + 1)
"""Blocks of the window group: four sequences with window, step and a cut block."""


def test_all_ranks_have_the_blocks_that_the_largest_can_hold() -> None:
    plan = plan_kv(replace(UNEVEN, asked_bytes=40_000, asked_len=1024))
    # The first rank: 44 window blocks of 300 leave room for 268 full ones; the second for 200.
    assert HELD == 44
    assert plan.blocks == (200, 44)
    assert plan.block_bytes == 600
    assert plan.bytes == 200 * 100 + 44 * 300 + 200 * 200
    assert (plan.num_blocks, plan.max_model_len) == (200, 1024)


def test_a_window_group_has_no_more_blocks_than_its_sequences_can_hold() -> None:
    by_rule = plan_kv(UNEVEN)
    assert by_rule.blocks == (4 * 64, HELD)
    assert plan_kv(replace(UNEVEN, max_num_seqs=1)).blocks == (64, HELD // 4)
    short = plan_kv(replace(UNEVEN, model_len=64, max_num_seqs=1))
    assert short.blocks == (4, 4)


def test_a_window_group_keeps_the_chunk_that_tiers_will_store() -> None:
    plan = plan_kv(replace(UNEVEN, chunk_tokens=32))
    assert plan.blocks == (4 * 64, 4 * ((96 + 64 + 32) // 16 + 1))


def test_what_a_loaded_prefix_takes_of_each_kind_of_group() -> None:
    plan = plan_kv(UNEVEN)
    assert plan.block_bytes == 600
    assert plan.growth_bytes == 100 + 200
    assert plan.window_bytes == 300 * (96 // 16 + 1)


def test_a_model_of_windows_only_has_what_all_sequences_can_hold() -> None:
    windows = KvNeeds([KvSpec(16, (KvGroup((0,), 50, 96),))], 1024, 4, 64, 0, 1 << 40, None, None)
    assert plan_kv(windows).blocks == (HELD,)
    assert plan_kv(windows).max_model_len == 1024


def test_window_blocks_count_in_what_a_length_needs() -> None:
    needs = replace(UNEVEN, specs=[rank(100, 300)], asked_len=1024, asked_bytes=9000)
    with pytest.raises(PenstockError, match=r"--max-model-len 1024 needs 9700 bytes .* are 9000"):
        plan_kv(needs)


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 300), st.integers(0, 10**7))
def test_as_many_blocks_as_fit_and_no_more(
    full: int, windowed: int, window: int, size: int
) -> None:
    needs = replace(UNEVEN, specs=[rank(full, windowed, window)])
    count = needs.fit(size)
    assert max(needs.rank_bytes(needs.blocks(count, 4))) <= size
    assert max(needs.rank_bytes(needs.blocks(count + 1, 4))) > size


def test_the_smallest_free_memory_of_the_ranks_counts() -> None:
    facts = WorkerFacts(bytes(32), Numerics((), "none", "bf16"), "none", 1, 0)
    loaded = [Loaded(facts, rank(100, 300), free) for free in (10**9, 10**5, 10**8)]
    settings = config(max_model_len="100", max_num_seqs="4", max_num_batched_tokens="64")
    needs = kv_needs(settings, model_info(), loaded)
    assert (needs.model_len, needs.asked_len, needs.asked_bytes) == (8192, 100, None)
    assert (needs.available, needs.max_num_seqs, needs.step_tokens) == (10**5, 4, 64)
    plan = size_kv(settings, model_info(), loaded)
    assert plan.max_model_len == 100
    assert max(needs.rank_bytes(plan.blocks)) <= 10**5 // 2
