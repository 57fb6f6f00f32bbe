"""Gemma, Phi-3, YaRN and GLM-4.5: what their configurations say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.model import ModelError, load_model
from penstock.model.spec import (
    Attention,
    Experts,
    FactorsScaling,
    LinearScaling,
    LongropeScaling,
    Mlp,
    Recipe,
    Rope,
    Router,
    YarnScaling,
)

GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 7,
    "head_dim": 256,
    "query_pre_attn_scalar": 168,
    "sliding_window": 512,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "hidden_act": None,
    "torch_dtype": "bfloat16",
}
PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "num_hidden_layers": 2,
    "partial_rotary_factor": 0.75,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0] * 6,
        "long_factor": [float(i + 1) for i in range(6)],
    },
}


def mixers(info: Any) -> list[Attention]:
    return [layer.mixer for layer in info.spec.layers]


def test_gemma3_has_two_ropes_and_every_sixth_layer_sees_all(load_hf: Any) -> None:
    info = load_hf(GEMMA3)
    full = Rope(1e6, LinearScaling(8.0))
    found = [(mixer.window, mixer.rope) for mixer in mixers(info)]
    assert found == [(512, Rope(1e4))] * 5 + [(None, full), (512, Rope(1e4))]
    assert mixers(info)[0].scale == 168**-0.5
    assert info.spec.tied_embeddings
    layer = info.weights.layers[3]
    assert layer["mixer_norm_after"] == Recipe("model.layers.3.post_attention_layernorm.weight")
    assert layer["feed_forward_norm"] == Recipe("model.layers.3.pre_feedforward_layernorm.weight")


@pytest.mark.parametrize(
    ("hidden", "stored"),
    [(640, 25.25), (1152, 34.0), (2304, 48.0), (2560, 50.5), (3584, 59.75), (5376, 73.5)],
)
def test_gemmas_embeddings_are_scaled_in_their_own_type(
    load_hf: Any, hidden: int, stored: float
) -> None:
    assert load_hf({**GEMMA3, "hidden_size": hidden}).spec.embed_scale == stored
    exact = load_hf({**GEMMA3, "hidden_size": hidden, "torch_dtype": "float32"}).spec.embed_scale
    assert exact == pytest.approx(hidden**0.5, rel=1e-7)


def test_gemma2_alternates_and_caps(load_hf: Any) -> None:
    gemma2 = {**GEMMA3, "architectures": ["Gemma2ForCausalLM"], "rope_scaling": None}
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    info = load_hf({**gemma2, **caps})
    assert [mixer.window for mixer in mixers(info)] == [512, None] * 3 + [512]
    assert {mixer.softcap for mixer in mixers(info)} == {50.0}
    assert info.spec.final_softcap == 30.0
    assert mixers(info)[0].qk_norm is None


def test_gemmas_text_model_within_a_larger_one(load_hf: Any, tmp_path: Path) -> None:
    """The published 4B says no more than this; the rest are defaults of transformers."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    names = {"weight_map": {"language_model.model.embed_tokens.weight": "x"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(names))
    outer = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "torch_dtype": "bfloat16",
    }
    info = load_hf(outer)
    attention = info.spec.attention
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (8, 4, 256)
    assert (info.spec.vocab, info.spec.embed_scale) == (262208, 50.5)
    assert info.weights.embed == Recipe("language_model.model.embed_tokens.weight")
    assert info.weights.layers[1]["q"].tensor.startswith("language_model.model.layers.1.self_attn")


def test_phi3_is_fused_and_rotates_a_part(load_hf: Any) -> None:
    info = load_hf(PHI3)
    assert mixers(info)[0].rope.dims == 12
    layer = info.weights.layers[1]
    assert layer["k"] == Recipe("model.layers.1.self_attn.qkv_proj.weight", rows=(96, 128))
    assert layer["up"] == Recipe("model.layers.1.mlp.gate_up_proj.weight", rows=(256, 512))


def test_longrope_is_chosen_by_what_is_served(load_hf: Any, tmp_path: Path) -> None:
    long = load_hf(PHI3).spec.attention.rope.scaling
    assert isinstance(long, LongropeScaling)
    assert long.divisors == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert long.attention_factor == pytest.approx(1.1902380714)
    short = load_model(tmp_path, served=4096).spec.attention.rope.scaling
    assert short == LongropeScaling((1.0,) * 6, long.attention_factor)
    assert load_model(tmp_path, served=4097).spec.attention.rope.scaling == long


def test_longrope_of_a_gguf_file_is_in_tensors(load_gguf: Any) -> None:
    keys = {
        "block_count": 2,
        "context_length": 131072,
        "embedding_length": 96,
        "feed_forward_length": 256,
        "attention.head_count": 6,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 12,
        "rope.scaling.attn_factor": 1.19,
        "rope.scaling.original_context_length": 4096,
    }
    named = {"general.architecture": "phi3", **{f"phi3.{k}": v for k, v in keys.items()}}
    factors = {"rope_factors_long.weight": [6], "rope_factors_short.weight": [6]}
    info = load_gguf(named, factors)
    assert info.spec.attention.rope == Rope(1e4, FactorsScaling(1.19), dims=12)
    assert info.weights.rope_factors == Recipe("rope_factors_long.weight")
    assert info.weights.layers[1]["up"] == Recipe("blk.1.ffn_up.weight", rows=(256, 512))
    with pytest.raises(ModelError, match=r"rope_factors_long.weight has shape \(4,\), not \(6,\)"):
        load_gguf(named, {**factors, "rope_factors_long.weight": [4]})


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("changes", "attention_factor", "fractional"),
    [
        ({}, 1.1386294361, False),
        ({"attention_factor": 1.25}, 1.25, False),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0, False),
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, 1.1386294361, False),
        ({"factor": 32.0, "truncate": False}, 1.3465735903, True),
    ],
)
def test_yarn(
    load_hf: Any, changes: dict[str, object], attention_factor: float, fractional: bool
) -> None:
    info = load_hf({"rope_scaling": {**YARN, **changes}, "max_position_embeddings": 32768})
    scaling = info.spec.attention.rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.beta_fast, scaling.beta_slow) == (32.0, 1.0)
    assert scaling.attention_factor == pytest.approx(attention_factor)
    assert scaling.fractional == fractional
    # Added by hand, as the model cards say, it stretches the context.
    assert info.spec.max_position == 32768 * scaling.factor


def test_yarn_of_a_gguf_file(load_gguf: Any) -> None:
    keys = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32768,
    }
    scaling = load_gguf(keys).spec.attention.rope.scaling
    assert scaling == YarnScaling(4.0, 32768, 32.0, 1.0, pytest.approx(1.1386294361))


GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "num_hidden_layers": 3,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
}


def test_glm_has_dense_layers_first(load_hf: Any) -> None:
    info = load_hf(GLM)
    plain, mixed = info.spec.layers[0].feed_forward, info.spec.layers[1].feed_forward
    assert isinstance(plain, Mlp)
    assert isinstance(mixed, Experts)
    assert (plain.intermediate, mixed.expert.intermediate) == (256, 32)
    assert mixed.shared == Mlp("gated", 64, "silu")
    assert mixed.router == Router(
        "sigmoid", correction=True, normalise=True, epsilon=1e-20, scale=2.5
    )
    assert info.spec.attention.rope == Rope(5e4, dims=8)
    assert not info.spec.attention.out_bias
    layer = info.weights.layers[2]
    correction = Recipe("model.layers.2.mlp.gate.e_score_correction_bias")
    assert layer["router_correction"] == correction
    assert layer["shared_up"] == Recipe("model.layers.2.mlp.shared_experts.up_proj.weight")
    assert "router_correction" not in info.weights.layers[0]


def test_glm_in_gguf_counts_layers_that_predict_further_tokens(
    load_gguf: Any, load_hf: Any
) -> None:
    keys = {
        "block_count": 4,
        "nextn_predict_layers": 1,
        "context_length": 2048,
        "embedding_length": 96,
        "feed_forward_length": 256,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": 8,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_weights_scale": 2.5,
        "leading_dense_block_count": 1,
        "rope.freq_base": 5e4,
    }
    named = {"general.architecture": "glm4moe", **{f"glm4moe.{k}": v for k, v in keys.items()}}
    info = load_gguf(named, {"blk.0.attn_q.bias": [96]})
    assert info.spec.layers == load_hf(GLM).spec.layers
    layer = info.weights.layers[2]
    assert layer["router_correction"] == Recipe("blk.2.exp_probs_b.bias")
    assert layer["feed_forward_norm"] == Recipe("blk.2.post_attention_norm.weight")
    with pytest.raises(ModelError, match="expert_gating_func = 1"):
        load_gguf({**named, "glm4moe.expert_gating_func": 1})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({**GEMMA3, "hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, "layer_types = "),
        ({**GEMMA3, "attn_logit_softcapping": 0}, "attn_logit_softcapping = 0"),
        ({**PHI3, "partial_rotary_factor": 0.7}, "partial_rotary_factor = 0.7"),
        ({**PHI3, "rope_scaling": {"type": "su", "long_factor": [1.0]}}, "long_factor = [1.0]"),
        ({**GLM, "num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
    ],
)
def test_refusals(load_hf: Any, changes: dict[str, object], fault: str) -> None:
    with pytest.raises(ModelError) as refusal:
        load_hf(changes)
    assert fault in str(refusal.value)
