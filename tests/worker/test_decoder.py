"""What the worker makes of the configuration, with a decoder that only describes itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.config import EngineConfig, Raw, resolve
from penstock.config.sections import TierConfig, TiersConfig
from penstock.core.transfer import OpenTiers
from penstock.worker import decoder
from penstock.worker.tiers import mover_options


def config(**texts: str) -> EngineConfig:
    return resolve(
        {key: Raw("--" + key, (text,)) for key, text in texts.items()}, "m.gguf", "m"
    ).engine


def fake_decoder() -> Any:
    facts = {
        "numerics": "w4/int8",
        "isa": "avx2",
        "threads": 2,
        "fingerprint": bytes(32),
        "weights_bytes": 7,
    }
    return SimpleNamespace(**facts, stages=[("weights packed", 0.1, "")])


def test_the_decoder_is_told_its_sizes() -> None:
    assert decoder.decoder_options(config(threads="3", isa="avx2", quantization="int8")) == {
        "threads": 3,
        "max_num_seqs": 64,
        "max_batched_tokens": 256,
        "block_size": 32,
        "kv_dtype": "bfloat16",
        "quantization": "int8",
        "dtype": "auto",
        "isa": "avx2",
    }


def test_the_mover_is_told_of_the_tiers_that_go_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not in any file or command line")
    tiers = TiersConfig(
        (
            TierConfig("ram", size_bytes=1 << 30),
            TierConfig(
                "disk", size_bytes=1 << 40, path="kv", daily_write_bytes=7, direct="off", quota=0.5
            ),
            TierConfig("disk", size_bytes=1 << 30, path="kv2"),
            TierConfig("redis", url="redis://h:6379/0", ttl_seconds=60),
            TierConfig("object", url="s3://bucket/prefix", options=(("region", "eu"),)),
        ),
        chunk_tokens=128,
    )
    told = mover_options(replace(config(), tiers=tiers), OpenTiers("c0ffee", 12, 1.0))
    options = {"region": "eu", "aws_secret_access_key": "not in any file or command line"}
    disk = {
        "kind": "disk",
        "path": "kv",
        "limit_bytes": 1 << 40,
        "daily_write_bytes": 7,
        "direct": "off",
    }
    other = {
        "kind": "disk",
        "path": "kv2",
        "limit_bytes": 1 << 30,
        "daily_write_bytes": None,
        "direct": "auto",
    }
    assert told == {
        "cache": "c0ffee",
        "ram_slots": 12,
        "chunk_tokens": 128,
        "tiers": [
            {**disk, "quota": 0.5},
            {**other, "quota": None},
            {"kind": "redis", "url": "redis://h:6379/0", "ttl_s": 60},
            {"kind": "object", "url": "s3://bucket/prefix", "options": options},
        ],
    }


def test_facts_say_what_was_loaded() -> None:
    facts = decoder.Worker(fake_decoder(), lambda tiers: {}).facts
    assert (facts.numerics, facts.isa, facts.threads, facts.weights_bytes) == (
        "w4/int8",
        "avx2",
        2,
        7,
    )
    assert facts.stages == (("weights packed", 0.1, ""),)
