"""GGUF metadata to DecoderSpec."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.model import ModelError
from penstock.model.families import GGUF_ARCHITECTURES
from penstock.model.spec import (
    Attention,
    Experts,
    FactorsScaling,
    LinearScaling,
    Mlp,
    Norm,
    Recipe,
    Rope,
    Router,
)


def test_llama_equals_the_same_model_in_the_other_container(load_gguf: Any, load_hf: Any) -> None:
    info = load_gguf()
    assert info.spec == load_hf().spec
    assert info.source == "gguf"
    assert info.weights.head == Recipe("output.weight")
    assert info.weights.layers[1]["down"] == Recipe("blk.1.ffn_down.weight")
    assert info.weights.layers[1]["q"] == Recipe("blk.1.attn_q.weight", interleaved=16)
    assert info.weights.layers[1]["v"] == Recipe("blk.1.attn_v.weight")
    assert [path.rsplit("/", 1)[-1] for path in info.paths] == ["model.gguf"]


def test_a_file_without_head_is_tied(load_gguf: Any) -> None:
    info = load_gguf(tensors={"output.weight": None})
    assert info.spec.tied_embeddings
    assert info.weights.head is None


def _renamed(architecture: str) -> dict[str, object]:
    keys = {
        "block_count": 3,
        "context_length": 2048,
        "embedding_length": 96,
        "feed_forward_length": 256,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
    }


def test_qwen2_biases_are_found_by_their_tensors(load_gguf: Any) -> None:
    info = load_gguf(_renamed("qwen2"), {"blk.0.attn_q.bias": [192]})
    assert info.spec.family == "qwen2"
    assert info.spec.attention.qkv_bias
    assert not info.spec.attention.out_bias
    assert info.weights.layers[2]["v_bias"] == Recipe("blk.2.attn_v.bias")
    assert info.weights.layers[2]["q"] == Recipe("blk.2.attn_q.weight")


def test_qwen3(load_gguf: Any) -> None:
    info = load_gguf(_renamed("qwen3"))
    assert info.spec.attention.qk_norm == Norm("rms", 1e-6)
    assert info.spec.attention.head_dim == 32
    assert info.spec.attention.rope == Rope(1e6)
    assert info.weights.layers[0]["k_norm"] == Recipe("blk.0.attn_k_norm.weight")
    assert info.weights.layers[0]["k"] == Recipe("blk.0.attn_k.weight")


MIXTRAL = {"llama.expert_count": 8, "llama.expert_used_count": 2}


def test_mixtral_is_a_llama_with_experts(load_gguf: Any) -> None:
    info = load_gguf(MIXTRAL)
    experts = info.spec.layers[0].feed_forward
    expert = Mlp("gated", 256, "silu")
    assert experts == Experts(8, 2, expert, Router("softmax", normalise=True))
    layer = info.weights.layers[1]
    assert layer["gate"] == Recipe("blk.1.ffn_gate_exps.weight")
    assert layer["router"] == Recipe("blk.1.ffn_gate_inp.weight")
    assert layer["q"] == Recipe("blk.1.attn_q.weight", interleaved=16)


def test_old_files_have_a_tensor_for_each_expert(load_gguf: Any) -> None:
    layer = load_gguf(MIXTRAL, {"blk.0.ffn_gate.0.weight": [256, 96]}).weights.layers[1]
    assert layer["down"] == Recipe("blk.1.ffn_down.{e}.weight")


def test_qwen_mixtures(load_gguf: Any) -> None:
    keys = {"expert_count": 60, "expert_used_count": 4, "expert_feed_forward_length": 32}
    own = {f"qwen3moe.{key}": value for key, value in keys.items()}
    mixture = load_gguf(_renamed("qwen3moe") | own).spec.layers[2].feed_forward
    expert = Mlp("gated", 32, "silu")
    assert mixture == Experts(60, 4, expert, Router("softmax", normalise=True))
    own = {f"qwen2moe.{key}": value for key, value in keys.items()}
    own["qwen2moe.expert_shared_feed_forward_length"] = 128
    info = load_gguf(_renamed("qwen2moe") | own)
    shared = replace(expert, intermediate=128)
    assert info.spec.layers[2].feed_forward == Experts(
        60, 4, expert, Router("softmax"), shared=shared, shared_gate=True
    )
    factor = info.weights.layers[2]["shared_factor"]
    assert factor == Recipe("blk.2.ffn_gate_inp_shexp.weight")


def test_gpt2(load_gguf: Any) -> None:
    keys = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 96,
        "feed_forward_length": 200,
        "attention.head_count": 6,
        "attention.layer_norm_epsilon": 1e-5,
    }
    info = load_gguf(
        {"general.architecture": "gpt2", **{f"gpt2.{key}": value for key, value in keys.items()}}
    )
    assert info.spec.attention == Attention(6, 6, 16, qkv_bias=True, out_bias=True)
    assert info.spec.layers[0].feed_forward == Mlp("plain", 200, "gelu_tanh", bias=True)
    assert not info.spec.tied_embeddings
    assert info.weights.positions == Recipe("position_embd.weight")
    assert info.weights.layers[1]["v"] == Recipe("blk.1.attn_qkv.weight", rows=(192, 288))
    assert info.weights.layers[1]["o"] == Recipe("blk.1.attn_output.weight")


def test_rope_scaling(load_gguf: Any) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert load_gguf(linear).spec.attention.rope.scaling == LinearScaling(2.0)
    assert load_gguf({"llama.rope.scale_linear": 4.0}).spec.attention.rope.scaling == LinearScaling(
        4.0
    )
    assert load_gguf({"llama.rope.scaling.type": "none"}).spec.attention.rope.scaling is None
    info = load_gguf(tensors={"rope_freqs.weight": [8]})
    assert info.spec.attention.rope.scaling == FactorsScaling()
    assert info.weights.rope_factors == Recipe("rope_freqs.weight")


def test_sliding_window(load_gguf: Any) -> None:
    layers = load_gguf({"llama.attention.sliding_window": 64}).spec.layers
    assert [layer.mixer.window for layer in layers] == [64, 64, 64]


REFUSALS: list[tuple[dict[str, object], dict[str, list[int] | None], str, str]] = [
    (
        {"general.architecture": "gemma"},
        {},
        "general.architecture = 'gemma'",
        " ".join(GGUF_ARCHITECTURES),
    ),
    ({"general.architecture": None}, {}, "general.architecture is missing", ""),
    ({"llama.expert_count": 8}, {}, "llama.expert_used_count is missing", ""),
    (
        {"llama.expert_count": 8, "llama.expert_used_count": 9},
        {},
        "llama.expert_used_count = 9",
        "from 1 to 8",
    ),
    ({"llama.expert_count": 1 << 31}, {}, "llama.expert_count = 2147483648", "from 1 to 4096"),
    ({"llama.block_count": None}, {}, "llama.block_count is missing", ""),
    (
        {"llama.attention.head_count": [6, 6, 6]},
        {},
        "llama.attention.head_count = [6, 6, 6]",
        "an integer",
    ),
    ({"llama.attention.head_count_kv": 5}, {}, "llama.attention.head_count_kv = 5", "divisor"),
    ({"llama.attention.value_length": 8}, {}, "llama.attention.value_length = 8", "16"),
    ({"llama.rope.dimension_count": 8}, {}, "llama.rope.dimension_count = 8", "whole head"),
    ({"llama.rope.scaling.type": "x"}, {}, "llama.rope.scaling.type = 'x'", "none linear yarn"),
    ({"llama.rope.scaling.type": "yarn"}, {}, "llama.rope.scaling.factor is missing", ""),
    ({}, {"rope_freqs.weight": [16]}, "tensor rope_freqs.weight has shape (16,)", "(8,)"),
    (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        {"rope_freqs.weight": [8]},
        "llama.rope.scaling.factor = 2.0",
        "rope factors",
    ),
    ({}, {"token_embd.weight": None}, "token_embd.weight must be a matrix", ""),
    (
        {"tokenizer.ggml.eos_token_id": 1000},
        {},
        "tokenizer.ggml.eos_token_id = 1000",
        "from 0 to 999",
    ),
]


@pytest.mark.parametrize(("changes", "tensors", "fault", "remedy"), REFUSALS)
def test_refusals_name_file_key_value_and_remedy(
    load_gguf: Any, changes: dict[str, object], tensors: dict[str, object], fault: str, remedy: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        load_gguf(changes, tensors)
    message = str(refusal.value)
    assert "model.gguf: " in message
    assert fault in message
    assert remedy in message


def test_special_tokens(load_gguf: Any) -> None:
    tokens = load_gguf().tokens
    assert (tokens.bos, tokens.eos, tokens.stop, tokens.add_bos) == (1, 2, (2,), None)
    tokens = load_gguf(
        {
            "tokenizer.ggml.eot_token_id": 9,
            "tokenizer.ggml.eom_token_id": 5,
            "tokenizer.ggml.add_bos_token": True,
        }
    ).tokens
    assert tokens.stop == (2, 5, 9)
    assert load_gguf(ends=(7, 2, 1000)).tokens.stop == (2, 7)
    assert tokens.add_bos is True
