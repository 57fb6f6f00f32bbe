"""DeepSeek-V2, V3, R1 and Kimi-K2 from config.json and from GGUF keys."""

from typing import Any

import pytest

from penstock.model import ModelError
from penstock.model.sharding import plan_grid
from penstock.model.sizing import kv_spec
from penstock.model.spec import Experts, Groups, LatentAttention, Recipe, Router, YarnScaling

LATENT: dict[str, object] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "moe_layer_freq": 1,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


def yarn(factor: float, mscale: float, fast: int = 32) -> dict[str, object]:
    return {
        "beta_fast": fast,
        "beta_slow": 1,
        "factor": factor,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    }


V2_LITE = LATENT | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "rope_theta": 10000,
    "rope_scaling": yarn(40, 0.707),
    "max_position_embeddings": 163840,
    "vocab_size": 102400,
}
V2 = V2_LITE | {
    "hidden_size": 5120,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_group": 8,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "routed_scaling_factor": 16.0,
}
V3 = LATENT | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "rope_theta": 10000,
    "rope_scaling": yarn(40, 1.0),
    "max_position_embeddings": 163840,
    "quantization_config": FP8,
    "vocab_size": 129280,
}
KIMI = V3 | {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 2.827,
    "rope_theta": 50000.0,
    "rope_scaling": yarn(32, 1.0, fast=1),
    "max_position_embeddings": 131072,
    "vocab_size": 163840,
}
PUBLISHED = {"V2-Lite": V2_LITE, "V2": V2, "V3": V3, "R1": V3, "Kimi-K2": KIMI}
ROUTERS = {
    "V2-Lite": Router("softmax"),
    "V2": Router("softmax", groups=Groups(8, 3, "max"), scale=16.0),
    "V3": Router(
        "sigmoid",
        correction=True,
        groups=Groups(8, 4, "top2_sum"),
        normalise=True,
        epsilon=1e-20,
        scale=2.5,
    ),
    "Kimi-K2": Router("sigmoid", correction=True, normalise=True, epsilon=1e-20, scale=2.827),
}
ROUTERS["R1"] = ROUTERS["V3"]
FACTORS = {"V2-Lite": 1.5896262, "V2": 1.5896262, "V3": 1.8738542, "R1": 1.8738542}
FACTORS["Kimi-K2"] = 1.8132604
KIB = {"V2-Lite": 30.4, "V2": 67.5, "V3": 68.6, "R1": 68.6, "Kimi-K2": 68.6}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_spec(load_hf: Any, name: str) -> None:
    config = PUBLISHED[name]
    spec = load_hf(config).spec
    mixer, dense = spec.layers[0].mixer, config["first_k_dense_replace"]
    assert isinstance(mixer, LatentAttention)
    assert (mixer.heads, mixer.query_rank) == (config["num_attention_heads"], config["q_lora_rank"])
    sizes = (mixer.kv_rank, mixer.plain_dim, mixer.rope_dim, mixer.value_dim)
    assert sizes == (512, 128, 64, 128)
    assert mixer.scale == pytest.approx(192**-0.5 * FACTORS[name], rel=1e-7)
    assert mixer.rope is not None
    assert isinstance(mixer.rope.scaling, YarnScaling)
    assert (mixer.rope.dims, mixer.rope.scaling.attention_factor) == (None, 1.0)
    forms = [layer.feed_forward for layer in spec.layers]
    assert [isinstance(form, Experts) for form in forms].count(False) == dense
    assert len({*forms}) == 2
    form = forms[-1]
    assert isinstance(form, Experts)
    assert form.router == ROUTERS[name]
    assert form.shared is not None
    count, width = config["n_shared_experts"], config["moe_intermediate_size"]
    assert form.shared.intermediate == count * width  # type: ignore[operator]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_rank_keeps_one_latent_for_all_heads(load_hf: Any, name: str, ranks: int) -> None:
    spec = load_hf(PUBLISHED[name]).spec
    for rank in range(ranks):
        kv = kv_spec(spec, plan_grid(spec, ranks, 1), rank, block_size=16)
        assert round(sum(group.block_bytes for group in kv.groups) / 16 / 1024, 1) == KIB[name]


def test_only_rope_rows_are_stored_in_pairs(load_hf: Any) -> None:
    at = "model.layers.0.self_attn."
    own = load_hf(V3 | {"quantization_config": None}).weights.layers[0]
    assert own["q"] == Recipe(f"{at}q_b_proj.weight", interleaved=192, unrotated=128)
    latent = Recipe(f"{at}kv_a_proj_with_mqa.weight", interleaved=576, unrotated=512)
    assert own["kv_a"] == latent
    assert own["kv_b"] == Recipe(f"{at}kv_b_proj.weight")
    lite = load_hf(V2_LITE).weights.layers[0]
    assert lite["q"].tensor == f"{at}q_proj.weight"
    halves = load_hf(V3 | {"rope_interleave": False}).weights.layers[0]
    assert halves["q"].interleaved is None


def test_8_bit_floats_have_scales_beside_them(load_hf: Any) -> None:
    layer = load_hf(V3).weights.layers[3]
    for role in ("q", "q_a", "kv_a", "kv_b", "o", "gate", "up", "down", "shared_down"):
        assert layer[role].scales == f"{layer[role].tensor}_scale_inv"
    for role in ("router", "router_correction", "mixer_norm", "kv_a_norm"):
        assert layer[role].scales is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"attention_bias": True}, "attention_bias = True"),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method = 'greedy'"),
        ({"n_group": 7}, "n_group = 7"),
        ({"topk_group": 9}, "topk_group = 9"),
        ({"n_routed_experts": 0}, "n_routed_experts = 0"),
        ({"n_routed_experts": 2**31}, "n_routed_experts = 2147483648"),
        ({"num_experts_per_tok": 257}, "num_experts_per_tok = 257"),
        ({"kv_lora_rank": 0}, "kv_lora_rank = 0"),
        ({"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"q_lora_rank": -1}, "q_lora_rank = -1"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim = 63"),
        ({"qk_nope_head_dim": 0}, "qk_nope_head_dim = 0"),
        ({"v_head_dim": 2**40}, "v_head_dim = "),
        ({"first_k_dense_replace": 62}, "first_k_dense_replace = 62"),
        ({"quantization_config": {"quant_method": "awq", "bits": 8}}, r"AWQ \(8-bit integers"),
        (
            {"quantization_config": FP8 | {"weight_block_size": [64, 64]}},
            r"weight_block_size = \[64, 64\]",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "mscale_all_dim": 1.0}},
            "mscale_all_dim",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type = 'dynamic'"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    load_hf: Any, changes: dict[str, object], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        load_hf(V3 | changes)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"norm_topk_prob": True}, "norm_topk_prob = True"),
        ({"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'"),
        ({"scoring_func": "sigmoid"}, "scoring_func = 'sigmoid'"),
    ],
)
def test_what_version_2_does_not_have_is_refused(
    load_hf: Any, changes: dict[str, object], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        load_hf(V2_LITE | changes)


KEYS: dict[str, object] = {
    "general.architecture": "deepseek2",
    "block_count": 61,
    "context_length": 163840,
    "embedding_length": 7168,
    "feed_forward_length": 18432,
    "attention.head_count": 128,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.q_lora_rank": 1536,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
    "rope.freq_base": 10000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "leading_dense_block_count": 3,
    "expert_count": 256,
    "expert_used_count": 8,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 2048,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "expert_group_count": 8,
    "expert_group_used_count": 4,
}
SPLIT = {"blk.0.attn_k_b.weight": [128, 512, 128]}


def keys(**changes: object) -> dict[str, object]:
    own = KEYS | {name.replace("__", "."): value for name, value in changes.items()}
    return {key if "general" in key else f"deepseek2.{key}": v for key, v in own.items()}


def test_a_gguf_file_has_the_spec_of_the_directory(load_hf: Any, load_gguf: Any) -> None:
    info = load_gguf(keys(), SPLIT)
    own, other = info.spec.layers, load_hf(V3).spec.layers
    assert [layer.feed_forward for layer in own] == [layer.feed_forward for layer in other]
    assert own[0].mixer == other[0].mixer
    layer = info.weights.layers[0]
    assert layer["k_b"] == Recipe("blk.0.attn_k_b.weight")
    assert layer["q"] == Recipe("blk.0.attn_q_b.weight", interleaved=192, unrotated=128)


def test_kimis_gguf_file_has_no_groups_of_experts(load_hf: Any, load_gguf: Any) -> None:
    own: dict[str, object] = {
        "attention__head_count": 64,
        "leading_dense_block_count": 1,
        "expert_count": 384,
        "expert_weights_scale": 2.827,
        "expert_group_count": None,
        "expert_group_used_count": None,
        "rope__freq_base": 50000.0,
        "rope__scaling.factor": 32.0,
        "rope__scaling.yarn_beta_fast": 1.0,
    }
    own_layers = load_gguf(keys(**own), SPLIT).spec.layers
    assert own_layers == load_hf(KIMI).spec.layers


def test_an_older_file_has_one_matrix_for_keys_and_values(load_gguf: Any) -> None:
    old = {"attention__key_length": 192, "attention__value_length": 128}
    new = {"attention__key_length_mla": None, "attention__value_length_mla": None}
    info = load_gguf(
        keys(
            **old,
            **new,
            attention__q_lora_rank=None,
            expert_gating_func=None,
            expert_weights_norm=None,
            expert_group_count=None,
            expert_group_used_count=None,
        )
    )
    mixer = info.spec.layers[0].mixer
    assert (mixer.plain_dim, mixer.value_dim, mixer.query_rank) == (128, 128, None)
    assert info.weights.layers[0]["kv_b"] == Recipe("blk.0.attn_kv_b.weight")
    form = info.spec.layers[-1].feed_forward
    assert isinstance(form, Experts)
    assert form.router == Router("softmax", scale=2.5)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"expert_gating_func": 4}, "expert_gating_func = 4"),
        ({"attention__key_length_mla": 64}, "key_length_mla = 64"),
        ({"attention__kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"expert_count": 0}, "expert_count = 0"),
        ({"expert_count": 2**31}, "expert_count = 2147483648"),
        ({"expert_used_count": 257}, "expert_used_count = 257"),
        ({"expert_group_count": 7}, "expert_group_count = 7"),
        ({"expert_group_used_count": 9}, "expert_group_used_count = 9"),
        ({"leading_dense_block_count": 62}, "leading_dense_block_count = 62"),
    ],
)
def test_keys_that_cannot_be_are_refused(
    load_gguf: Any, changes: dict[str, object], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        load_gguf(keys(**changes), SPLIT)
