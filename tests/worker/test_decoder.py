"""What the worker makes of the configuration, with a decoder that only describes itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.config import EngineConfig, Raw, resolve
from penstock.worker import decoder


def config(**texts: str) -> EngineConfig:
    return resolve({key: Raw("--" + key, (text,)) for key, text in texts.items()}, "m.gguf", "m").engine


def fake_decoder() -> Any:
    facts = {"numerics": "w4/int8", "isa": "avx2", "threads": 2, "fingerprint": bytes(32), "weights_bytes": 7}
    return SimpleNamespace(**facts, stages=[("weights packed", 0.1, "")])


def test_the_decoder_is_told_its_sizes() -> None:
    assert decoder.decoder_options(config(threads="3", isa="avx2", quantization="int8"), 10) == {
        "threads": 3,
        "max_num_seqs": 64,
        "max_batched_tokens": 256,
        "block_size": 32,
        "num_blocks": 10,
        "kv_dtype": "bfloat16",
        "quantization": "int8",
        "dtype": "auto",
        "isa": "avx2",
    }


def test_facts_say_what_was_loaded() -> None:
    facts = decoder.Worker(fake_decoder(), lambda tiers: {}).facts
    assert (facts.numerics, facts.isa, facts.threads, facts.weights_bytes) == ("w4/int8", "avx2", 2, 7)
    assert facts.stages == (("weights packed", 0.1, ""),)
