from dataclasses import replace

import pytest
from penstock.config.memory import CEILING, FLOOR, MIB, KvNeeds, plan_kv
from penstock.core import PenstockError

# SmolLM2-135M: 30 layers, 3 KV heads of 64, bfloat16.
SMALL = KvNeeds(
    token_bytes=23_040,
    block_size=32,
    model_len=8192,
    max_num_seqs=64,
    available=16 * 1024 * MIB,
    asked_bytes=None,
    asked_len=None,
)


def test_two_sequences_of_full_length_fit_by_default() -> None:
    plan = plan_kv(SMALL)
    assert plan.bytes == 2 * 8192 * 23_040
    assert (plan.max_model_len, plan.notice) == (8192, "")


def test_a_short_model_gets_the_floor_and_a_long_one_the_ceiling() -> None:
    assert 0 <= FLOOR - plan_kv(replace(SMALL, model_len=1024)).bytes < SMALL.token_bytes * 32
    assert 0 <= CEILING - plan_kv(replace(SMALL, model_len=32_768)).bytes < SMALL.token_bytes * 32


def test_never_more_than_all_sequences_can_fill() -> None:
    assert plan_kv(replace(SMALL, max_num_seqs=1, model_len=64)).num_blocks == 2


def test_never_more_than_half_of_what_is_free() -> None:
    plan = plan_kv(replace(SMALL, available=400 * MIB))
    assert plan.bytes <= 200 * MIB
    assert plan.max_model_len == 8192


def test_the_length_is_lowered_with_a_notice_when_memory_is_short() -> None:
    plan = plan_kv(replace(SMALL, available=100 * MIB))
    assert plan.max_model_len == plan.num_blocks * 32 < 8192
    assert f"lowered from 8192 to {plan.max_model_len}" in plan.notice


def test_a_length_that_was_asked_for_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        PenstockError, match=r"--max-model-len 8192 needs 188743680 bytes .* there are 52428800"
    ):
        plan_kv(replace(SMALL, asked_len=8192, asked_bytes=50 * MIB))


def test_a_shorter_length_fits_where_the_full_one_does_not() -> None:
    plan = plan_kv(replace(SMALL, asked_len=1000, asked_bytes=50 * MIB))
    assert (plan.max_model_len, plan.notice) == (1000, "")


def test_asked_bytes_are_taken_even_when_less_is_free() -> None:
    assert plan_kv(replace(SMALL, available=0, asked_bytes=512 * MIB)).bytes <= 512 * MIB


def test_room_for_no_block_is_refused() -> None:
    with pytest.raises(PenstockError, match="one block of 32 tokens takes 737280"):
        plan_kv(replace(SMALL, available=MIB))
