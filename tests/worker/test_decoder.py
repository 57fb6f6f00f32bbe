"""What the worker makes of the configuration, with a decoder that only describes itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.config import EngineConfig, Raw, resolve
from penstock.config.memory import KvPlan
from penstock.model import DecoderSpec, GenerationDefaults, ModelInfo, TokenFacts, WeightNames
from penstock.model.spec import Attention, Mlp, Rope
from penstock.worker import decoder


def config(**texts: str) -> EngineConfig:
    return resolve({key: Raw("--" + key, (text,)) for key, text in texts.items()}, "m.gguf", "m").engine


def model_info(*paths: str) -> ModelInfo:
    spec = DecoderSpec("llama", 30, 576, 49152, 8192, 1e-5, Attention(9, 3, 64), Rope(1e5), Mlp(1536), True)
    names = WeightNames("e", "n", None, None, {}, False)
    tokens = TokenFacts(1, 2, (2,), False, True)
    return ModelInfo("m", "gguf", "llama", paths, spec, names, GenerationDefaults(), tokens)


def fake_decoder(**changes: object) -> Any:
    facts = {"numerics": "w4/int8", "isa": "avx2", "threads": 2, "fingerprint": bytes(32), "weights_bytes": 7}
    return SimpleNamespace(**{**facts, "stages": [("weights packed", 0.1, "")], **changes})


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, "bfloat16"),
        ({"quantization": "none"}, "float32"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "float32", "quantization": "int8"}, "bfloat16"),
        ({"quantization": "none", "kv_cache_dtype": "bfloat16"}, "bfloat16"),
        ({"kv_cache_dtype": "float32"}, "float32"),
    ],
)
def test_keys_and_values_take_the_form_of_the_numerics_table(texts: dict[str, str], expected: str) -> None:
    assert decoder.kv_dtype(config(**texts)) == expected


def test_the_decoder_is_told_its_sizes() -> None:
    kv = KvPlan(num_blocks=10, block_bytes=100, max_model_len=320, notice="")
    assert decoder.decoder_options(config(threads="3", isa="avx2", quantization="int8"), kv) == {
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


def test_a_token_takes_keys_and_values_of_all_layers() -> None:
    needs = decoder.kv_needs(config(max_model_len="100"), model_info(), 5)
    assert needs.token_bytes == 30 * 2 * 3 * 64 * 2
    assert (needs.model_len, needs.asked_len, needs.asked_bytes, needs.available) == (8192, 100, None, 5)


def test_odd_heads_count_with_their_padding() -> None:
    info = model_info()
    attention = replace(info.spec.attention, head_dim=20)
    odd = replace(info, spec=replace(info.spec, attention=attention))
    assert decoder.kv_needs(config(max_model_len="100"), odd, 5).token_bytes == 30 * 2 * 3 * 32 * 2


def test_weights_are_the_files_of_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(10))
    (tmp_path / "b.safetensors").write_bytes(bytes(5))
    (tmp_path / "tokenizer.json").write_bytes(bytes(99))
    assert decoder.weight_bytes(model_info(str(tmp_path))) == 15
    assert decoder.weight_bytes(model_info(str(tmp_path / "a.safetensors"))) == 10


def test_whatever_changes_the_bytes_of_a_block_changes_the_identity() -> None:
    info = model_info()
    identities = [
        decoder.cache_identity(fake_decoder(), config(), info),
        decoder.cache_identity(fake_decoder(fingerprint=bytes([1]) * 32), config(), info),
        decoder.cache_identity(fake_decoder(numerics="w8/int8"), config(), info),
        decoder.cache_identity(fake_decoder(), config(kv_cache_dtype="float32"), info),
        decoder.cache_identity(
            fake_decoder(), config(), replace(info, spec=replace(info.spec, rope=Rope(1e6)))
        ),
    ]
    assert len(set(identities)) == len(identities)
    assert {len(identity) for identity in identities} == {32}
    assert decoder.cache_identity(fake_decoder(), config(max_num_seqs="2"), info) == identities[0]


def test_facts_say_what_was_loaded() -> None:
    kv = KvPlan(num_blocks=10, block_bytes=100, max_model_len=320, notice="lowered")
    facts = decoder.Worker(fake_decoder(), config(), model_info(), kv).facts
    assert (facts.num_blocks, facts.block_bytes, facts.max_model_len, facts.notice) == (
        10,
        100,
        320,
        "lowered",
    )
    assert (facts.numerics, facts.isa, facts.threads, facts.weights_bytes) == ("w4/int8", "avx2", 2, 7)
    assert facts.stages == (("weights packed", 0.1, ""),)
