"""Memory and message sizes of ranks, and what ranks say of themselves as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from penstock.config import EngineConfig, Raw, resolve
from penstock.config.memory import KvPlan
from penstock.core import PenstockError, WorkerFacts
from penstock.engine import sizing
from penstock.engine.facts import cache_identity, join_facts, join_numerics
from penstock.model import DecoderSpec, ModelInfo
from penstock.model.sharding import plan_grid

from tests.fakes import models


def config(**texts: str) -> EngineConfig:
    return resolve(
        {key: Raw("--" + key, (text,)) for key, text in texts.items()}, "m.gguf", "m"
    ).engine


def dense(head_dim: int = 64, theta: float = 1e5) -> DecoderSpec:
    return models.dense_spec(30, 576, 49152, 8192, (9, 3, head_dim), 1536, theta)


def model_info(*paths: str, head_dim: int = 64) -> ModelInfo:
    return models.model_info(dense(head_dim), *paths)


def token_bytes(info: ModelInfo, tp: int, pp: int, **texts: str) -> list[int]:
    grid = plan_grid(info.spec, tp, pp)
    return [sizing.token_bytes(config(**texts), info, grid, rank) for rank in range(grid.size)]


def test_a_token_takes_keys_and_values_of_all_layers() -> None:
    assert token_bytes(model_info(), 1, 1) == [30 * 2 * 3 * 64 * 2]
    assert token_bytes(model_info(), 1, 1, kv_cache_dtype="float32") == [30 * 2 * 3 * 64 * 4]


def test_ranks_hold_their_heads_and_layers() -> None:
    head = 2 * 64 * 2
    assert token_bytes(model_info(), 2, 1) == [30 * 2 * head] * 2
    assert token_bytes(model_info(), 1, 2) == [19 * 3 * head, 11 * 3 * head]
    assert token_bytes(model_info(), 3, 2) == [19 * head] * 3 + [11 * head] * 3


def test_odd_heads_count_with_their_padding() -> None:
    assert token_bytes(model_info(head_dim=20), 1, 1) == [30 * 2 * 3 * 32 * 2]


def test_settings_enter_the_needs() -> None:
    needs = sizing.kv_needs(config(max_model_len="100"), model_info(), 5, 7)
    assert (needs.model_len, needs.asked_len, needs.asked_bytes) == (8192, 100, None)
    assert (needs.available, needs.token_bytes) == (5, 7)


def test_all_ranks_have_the_blocks_that_the_largest_can_hold(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(bytes(10))
    info = model_info(str(tmp_path / "m.gguf"))
    settings = config(kv_cache_memory_bytes="8MiB", max_model_len="64")
    sizes = sizing.size_kv(settings, info, plan_grid(info.spec, 1, 2))
    first, second = token_bytes(info, 1, 2)
    assert sizes.plan.num_blocks == 2**23 // (first * 32)
    assert sizes.block_bytes == (first + second) * 32


def test_weights_are_the_files_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(10))
    (tmp_path / "b.safetensors").write_bytes(bytes(5))
    (tmp_path / "tokenizer.json").write_bytes(bytes(99))
    assert sizing.weight_bytes(model_info(str(tmp_path))) == 15
    assert sizing.weight_bytes(model_info(str(tmp_path / "a.safetensors"))) == 10


def test_messages_have_room_for_the_largest_step() -> None:
    info = model_info()
    settings = config(max_num_seqs="4", max_num_batched_tokens="100", tensor_parallel_size="2")
    ranks = sizing.plan_ranks(settings, info, plan_grid(info.spec, 2, 1), KvPlan(50, 1, 320, ""))
    assert (ranks.size, ranks.reader, ranks.num_blocks) == (2, 0, 50)
    assert ranks.part_numbers == 32 * 49152 // 2
    assert ranks.rows_bytes == 4 * 100 * 576
    assert ranks.plan_bytes >= 100 * 8 + 4 * 10 * 4


FACTS = WorkerFacts(bytes(32), "w4+w8/int8/kv-bf16", "avx2", 1, 100, (("model read", 0.1, ""),))


@pytest.mark.parametrize(
    ("each", "whole"),
    [
        (["w4/int8/kv-bf16", "w4+w8/int8/kv-bf16"], "w4+w8/int8/kv-bf16"),
        (["f32/f32/kv-f32", "/none/kv-f32"], "f32/f32/kv-f32"),
        (["bf16/bf16/kv-bf16", "w8/int8/kv-bf16"], "bf16+w8/int8/kv-bf16"),
    ],
)
def test_numerics_of_parts_are_those_of_the_whole(each: list[str], whole: str) -> None:
    assert join_numerics(each) == whole
    assert join_numerics([whole]) == whole


def test_facts_of_ranks_add_up() -> None:
    joined = join_facts([FACTS, replace(FACTS, threads=2, weights_bytes=11)])
    assert (joined.threads, joined.weights_bytes, joined.isa) == (3, 111, "avx2")
    assert join_facts([FACTS]) == FACTS
    with pytest.raises(PenstockError, match="rank 1 opened another checkpoint"):
        join_facts([FACTS, replace(FACTS, fingerprint=bytes([1]) * 32)])


def test_whatever_changes_the_values_of_a_block_changes_its_name_and_cuts_do_not() -> None:
    spec = model_info().spec
    identities = [
        cache_identity(FACTS, spec.to_json()),
        cache_identity(replace(FACTS, fingerprint=bytes([1]) * 32), spec.to_json()),
        cache_identity(replace(FACTS, numerics="w8/int8/kv-bf16"), spec.to_json()),
        cache_identity(FACTS, dense(theta=1e6).to_json()),
    ]
    assert len(set(identities)) == len(identities)
    assert {len(identity) for identity in identities} == {32}
    halves = [
        replace(FACTS, numerics="w4/int8/kv-bf16"),
        replace(FACTS, numerics="w8/int8/kv-bf16"),
    ]
    assert cache_identity(join_facts(halves), spec.to_json()) == identities[0]
