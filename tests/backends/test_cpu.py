"""The native decoder as a backend: its options, facts and errors, with a decoder that only
describes itself.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.backends import cpu, cpu_options, load_backend, mover_options
from penstock.config import EngineConfig, Raw, resolve
from penstock.config.sections import TierConfig, TiersConfig
from penstock.core import Allocation, KvGroup, KvSpec, Numerics, PenstockError
from penstock.core.transfer import OpenTiers


def config(**texts: str) -> EngineConfig:
    return resolve(
        {key: Raw("--" + key, (text,)) for key, text in texts.items()}, "m.gguf", "m"
    ).engine


def allocate(blocks: tuple[int, ...]) -> None:
    raise ValueError(f"{blocks[0]} blocks need more memory than there is")


def fake_decoder() -> Any:
    return SimpleNamespace(
        numerics="w4/int8/kv-bf16",
        isa="avx2",
        threads=2,
        fingerprint=bytes(32),
        weights_bytes=7,
        stages=[("weights packed", 0.1, "")],
        kv_spec=lambda: (32, [([0, 2], 4096, None, False), ([1], 2048, 128, True)]),
        allocate=allocate,
    )


def test_the_decoder_gets_its_sizes() -> None:
    assert cpu_options.decoder_options(config(threads="3", isa="avx2", quantization="int8")) == {
        "threads": 3,
        "max_num_seqs": 64,
        "max_batched_tokens": 256,
        "block_size": 32,
        "kv_dtype": "bfloat16",
        "quantization": "int8",
        "dtype": "auto",
        "isa": "avx2",
    }


def test_the_mover_gets_the_tiers_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not in any file or command line")
    tiers = TiersConfig(
        (
            TierConfig("ram", size_bytes=1 << 30),
            TierConfig("disk", size_bytes=1 << 40, path="kv", daily_write_bytes=7, quota=0.5),
            TierConfig("disk", size_bytes=1 << 30, path="kv2"),
            TierConfig("redis", url="redis://h:6379/0", ttl_seconds=60),
            TierConfig("object", url="s3://bucket/prefix", options=(("region", "eu"),)),
        ),
        chunk_tokens=128,
    )
    found = mover_options.mover_options(
        replace(config(), tiers=tiers), OpenTiers("c0ffee", 12, 1.0)
    )
    options = {"region": "eu", "aws_secret_access_key": "not in any file or command line"}
    disk = {
        "kind": "disk",
        "path": "kv",
        "limit_bytes": 1 << 40,
        "daily_write_bytes": 7,
    }
    other = {
        "kind": "disk",
        "path": "kv2",
        "limit_bytes": 1 << 30,
        "daily_write_bytes": None,
    }
    assert found == {
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


def test_facts_describe_what_was_loaded() -> None:
    backend = cpu.CpuBackend(fake_decoder(), config())
    facts = backend.facts
    assert facts.numerics == Numerics(("w4",), "int8", "bf16")
    assert str(facts.numerics) == "w4/int8/kv-bf16"
    assert (facts.device, facts.threads, facts.weights_bytes) == ("avx2", 2, 7)
    assert facts.stages == (("weights packed", 0.1, ""),)
    groups = (KvGroup((0, 2), 4096, None), KvGroup((1,), 2048, 128, chunked=True))
    assert backend.kv_spec() == KvSpec(32, groups)


def test_ranks_of_a_host_share_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_memory", lambda: 1000)
    assert cpu.CpuBackend(fake_decoder(), config()).free_memory() == 1000
    two = config(tensor_parallel_size="2", pipeline_parallel_size="2")
    assert cpu.CpuBackend(fake_decoder(), two).free_memory() == 250


def test_what_the_decoder_refuses_is_an_error_for_users() -> None:
    with pytest.raises(PenstockError, match="9 blocks need more memory than there is"):
        cpu.CpuBackend(fake_decoder(), config()).allocate(Allocation((9,)))


def test_a_backend_that_does_not_exist_is_named() -> None:
    with pytest.raises(PenstockError, match=r"--device abacus: No module named 'penstock.backends"):
        load_backend(config(device="abacus"), None)  # type: ignore[arg-type]
