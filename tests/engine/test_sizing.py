"""Message sizes of ranks, and facts of ranks as one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from penstock.backends.cpu import parse_numerics
from penstock.config import EngineConfig, Raw, resolve
from penstock.core import Numerics, PenstockError, WorkerFacts
from penstock.core.codec import plan_bytes
from penstock.engine import sizing
from penstock.engine.facts import cache_identity, join_facts, join_numerics
from penstock.engine.startup import build_limits
from penstock.model import DecoderSpec, ModelInfo
from penstock.model.sharding import plan_grid
from penstock.scheduler.limits import AHEAD_SECONDS
from tests.fakes import models


def config(**texts: str) -> EngineConfig:
    return resolve(
        {key: Raw("--" + key, (text,)) for key, text in texts.items()}, "m.gguf", "m"
    ).engine


def dense(head_dim: int = 64, theta: float = 1e5) -> DecoderSpec:
    return models.dense_spec(30, 576, 49152, 8192, (9, 3, head_dim), 1536, theta)


def model_info(*paths: str, head_dim: int = 64) -> ModelInfo:
    return models.model_info(dense(head_dim), *paths)


def test_messages_have_room_for_the_largest_step() -> None:
    info = model_info()
    settings = config(max_num_seqs="4", max_num_batched_tokens="100", tensor_parallel_size="2")
    layout = sizing.plan_layout(settings, info, plan_grid(info.spec, 2, 1))
    assert (layout.size, layout.reader, layout.depth) == (2, 0, 2)
    assert layout.group_numbers == 32 * 49152 // 2
    assert layout.rows_bytes == 4 * 100 * 576
    assert layout.plan_bytes == plan_bytes(4, 100, 1, 4 * 8192 // 32, 8192)
    shorter = sizing.plan_layout(
        replace(settings, model=replace(settings.model, max_model_len=320)),
        info,
        plan_grid(info.spec, 2, 1),
    )
    assert shorter.plan_bytes == plan_bytes(4, 100, 1, 4 * 10, 320)


def test_each_kv_group_has_tables_of_its_own() -> None:
    info = model_info()
    full = info.spec.layers[0]
    short = replace(full, mixer=replace(full.mixer, window=128))
    windowed = replace(info, spec=replace(info.spec, layers=(full, short) * 15))
    settings = config(max_num_seqs="4", max_num_batched_tokens="100")
    layout = sizing.plan_layout(settings, windowed, plan_grid(info.spec, 1, 2))
    assert layout.plan_bytes == plan_bytes(4, 100, 2, 2 * 4 * 8192 // 32, 8192)


MIXED = Numerics(("w4", "w8"), "int8", "bf16")
FACTS = WorkerFacts(bytes(32), MIXED, "avx2", 1, 100, (("model read", 0.1, ""),))


@pytest.mark.parametrize(
    ("each", "whole"),
    [
        (["w4/int8/kv-bf16", "w4+w8/int8/kv-bf16"], "w4+w8/int8/kv-bf16"),
        (["f32/f32/kv-f32", "/none/kv-f32"], "f32/f32/kv-f32"),
        (["bf16/bf16/kv-bf16", "w8/int8/kv-bf16"], "bf16+w8/int8/kv-bf16"),
    ],
)
def test_numerics_of_parts_are_those_of_the_whole(each: list[str], whole: str) -> None:
    joined = join_numerics(map(parse_numerics, each))
    assert str(joined) == whole
    assert join_numerics([joined]) == joined


def test_facts_of_ranks_add_up() -> None:
    joined = join_facts([FACTS, replace(FACTS, threads=2, weights_bytes=11)])
    assert (joined.threads, joined.weights_bytes, joined.device) == (3, 111, "avx2")
    assert join_facts([FACTS]) == FACTS
    with pytest.raises(PenstockError, match="rank 1 opened another checkpoint"):
        join_facts([FACTS, replace(FACTS, fingerprint=bytes([1]) * 32)])


def test_plans_are_made_ahead_behind_all_steps_of_a_gpu() -> None:
    kv = sizing.KvPlan((8,), 256, 0, 0, 0, 0, "")
    for facts, expected in ((FACTS, AHEAD_SECONDS), (replace(FACTS, own_memory=True), math.inf)):
        assert build_limits(config(), model_info(), kv, facts).ahead_seconds == expected


def test_whatever_changes_the_values_of_a_block_changes_its_name_and_cuts_do_not() -> None:
    spec = model_info().spec
    identities = [
        cache_identity(FACTS, spec.to_json()),
        cache_identity(replace(FACTS, fingerprint=bytes([1]) * 32), spec.to_json()),
        cache_identity(replace(FACTS, numerics=parse_numerics("w8/int8/kv-bf16")), spec.to_json()),
        cache_identity(FACTS, dense(theta=1e6).to_json()),
    ]
    assert len(set(identities)) == len(identities)
    assert {len(identity) for identity in identities} == {32}
    halves = [
        replace(FACTS, numerics=parse_numerics("w4/int8/kv-bf16")),
        replace(FACTS, numerics=parse_numerics("w8/int8/kv-bf16")),
    ]
    assert cache_identity(join_facts(halves), spec.to_json()) == identities[0]
