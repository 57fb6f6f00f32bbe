"""The lines about model and memory in the log of a start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.config import CacheConfig, TierConfig, TiersConfig
from penstock.core import Numerics, WorkerFacts
from penstock.engine.sizing import KvPlan
from penstock.engine.start_log import memory, model_name, precision
from penstock.model.sharding import plan_grid
from tests.engine.test_sizing import model_info

FACTS = WorkerFacts(
    bytes(32), Numerics(("w4", "w8"), "int8", "bf16"), "avx2", 1, 92 << 20, (("packed", 0.1, ""),)
)


def test_precision_of_one_rank() -> None:
    grid = plan_grid(model_info().spec, 1, 1)
    said = "weights w4+w8, 92 MiB; activations int8; KV bf16; avx2 on 1 thread"
    assert precision(FACTS, grid) == said


def test_precision_of_several_ranks() -> None:
    grid = plan_grid(model_info().spec, 3, 2)
    said = precision(replace(FACTS, threads=6), grid)
    assert said.endswith("; avx2 on 6 threads; 3 x 2 ranks (tensor x pipeline)")


RAM = TierConfig("ram", 200 << 20)
DISK = TierConfig("disk", 3 << 30, path="/kv")
REDIS = TierConfig("redis", url="redis://user:secret@h:6379")


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        ((), ", no tiers"),
        ((RAM,), "; tiers ram 200 MiB"),
        ((DISK, REDIS, RAM), "; tiers ram 200 MiB, disk:/kv 3.00 GiB, redis://h:6379"),
    ],
)
def test_memory_names_pool_and_tiers(tiers: tuple[TierConfig, ...], said: str) -> None:
    """The RAM tier first, as it is looked up first, and no password."""
    kv = KvPlan((512,), 8192, 360 << 20, 1, 1, 0, "")
    cache = CacheConfig(None, 32, "bf16", prefix_caching=True)
    line = memory(kv, cache, FACTS, TiersConfig(tiers))
    assert line == f"KV of 16,384 tokens in 360 MiB of bf16{said}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SmolLM2-135M", "SmolLM2-135M"),
        ("a\n2026 ERROR: b\x1b[31m", "a?2026 ERROR: b?[31m"),
        ("x" * 300, "x" * 77 + "..."),
    ],
)
def test_a_name_is_one_line(name: str, said: str) -> None:
    assert model_name(name) == said
