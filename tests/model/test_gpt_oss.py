"""gpt-oss from config.json and from GGUF keys."""

from typing import Any

import pytest

from penstock.model import ModelError
from penstock.model.spec import Clamp, Experts, Mlp, Recipe, Router, YarnScaling

GPT_OSS: dict[str, object] = {
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
}
EXPERT = Mlp("gated", 256, "silu", bias=True, clamp=Clamp(7.0, 1.702, 1.0))
MIXTURE = Experts(32, 4, EXPERT, Router("softmax", after_choice=True, bias=True))


def test_published_configurations(load_hf: Any) -> None:
    info = load_hf({**GPT_OSS, "swiglu_limit": 7.0})
    layers = info.spec.layers
    assert [layer.feed_forward for layer in layers] == [MIXTURE] * 3
    assert [layer.mixer.window for layer in layers] == [128, None, 128]
    mixer = layers[0].mixer
    assert (mixer.head_dim, mixer.sinks, mixer.qkv_bias, mixer.out_bias) == (64, True, True, True)
    assert isinstance(mixer.rope.scaling, YarnScaling)
    assert mixer.rope.scaling.fractional


def test_experts_are_stacked_with_gate_and_up_in_turn(load_hf: Any) -> None:
    layer = load_hf(GPT_OSS).weights.layers[1]
    at = "model.layers.1.mlp.experts."
    fused = {"rows": (256, 512), "interleaved": 512}
    assert layer["up"] == Recipe(f"{at}gate_up_proj", transposed=True, **fused)
    assert layer["up_bias"] == Recipe(f"{at}gate_up_proj_bias", **fused)
    assert layer["down"] == Recipe(f"{at}down_proj", transposed=True)
    assert layer["sinks"] == Recipe("model.layers.1.self_attn.sinks")
    assert layer["router_bias"] == Recipe("model.layers.1.mlp.router.bias")


def test_codes_of_mxfp4_have_scales_of_their_own(load_hf: Any) -> None:
    layer = load_hf({**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}).weights.layers[0]
    at = "model.layers.0.mlp.experts."
    codes = {"scales": f"{at}gate_up_proj_scales", "rows": (0, 256), "interleaved": 512}
    assert layer["gate"] == Recipe(f"{at}gate_up_proj_blocks", **codes)
    assert layer["down"] == Recipe(f"{at}down_proj_blocks", scales=f"{at}down_proj_scales")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, r"GPTQ \(8-bit integers"),
        ({"attention_bias": False}, "attention_bias = False"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"sliding_window": None}, "sliding_window is missing"),
        ({"swiglu_limit": -7}, "swiglu_limit = -7"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    load_hf: Any, changes: dict[str, object], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        load_hf({**GPT_OSS, **changes})


def test_gguf(load_gguf: Any) -> None:
    keys = {
        "block_count": 3,
        "context_length": 2048,
        "embedding_length": 96,
        "feed_forward_length": 256,
        "expert_feed_forward_length": 256,
        "expert_count": 32,
        "expert_used_count": 4,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.sliding_window": 128,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 64,
    }
    own = {"general.architecture": "gpt-oss"}
    biases = {"blk.0.attn_q.bias": [384], "blk.0.attn_output.bias": [96]}
    info = load_gguf({**{f"gpt-oss.{key}": value for key, value in keys.items()}, **own}, biases)
    layers = info.spec.layers
    assert layers[1].feed_forward == MIXTURE
    assert [layer.mixer.window for layer in layers] == [128, None, 128]
    assert layers[0].mixer.rope.scaling.fractional
    roles = info.weights.layers[2]
    assert roles["feed_forward_norm"] == Recipe("blk.2.post_attention_norm.weight")
    assert roles["gate_bias"] == Recipe("blk.2.ffn_gate_exps.bias")
    assert roles["sinks"] == Recipe("blk.2.attn_sinks.weight")
