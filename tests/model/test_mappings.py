"""SmolLM3, ERNIE 4.5, GLM-4.7-Flash and Qwen3-VL: what their configurations say, and what is
refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.model import ModelError
from penstock.model.spec import Attention, Experts, Recipe, Rope

SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"], "rope_theta": None}
ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "rope_theta": None,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}
FLASH = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "kv_lora_rank": 64,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mlp_layer_types": ["dense", "sparse", "dense"],
}


def mixers(info: Any) -> list[Attention]:
    return [layer.mixer for layer in info.spec.layers]


def test_smollm3_has_layers_without_rope(load_hf: Any) -> None:
    info = load_hf({**SMOLLM3, "no_rope_layers": [1, 0, 1]})
    assert [mixer.rope for mixer in mixers(info)] == [Rope(2e6), None, Rope(2e6)]
    assert info.spec.tied_embeddings
    four = mixers(load_hf({**SMOLLM3, "num_hidden_layers": 4}))
    assert [mixer.rope is None for mixer in four] == [False, False, False, True]


def text_of(kind: str, **text: object) -> dict[str, object]:
    own = {
        "hidden_act": "silu",
        "hidden_size": 96,
        "intermediate_size": 256,
        "max_position_embeddings": 2048,
        "model_type": kind,
        "num_attention_heads": 6,
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-5,
        "vocab_size": 1000,
        **text,
    }
    return {"text_config": own}


def test_ernies_experts_start_where_it_says(load_hf: Any) -> None:
    info = load_hf({**ERNIE, "num_hidden_layers": 5, "moe_layer_interval": 2})
    forms = [isinstance(layer.feed_forward, Experts) for layer in info.spec.layers]
    assert forms == [False, True, False, True, False]
    mixture = info.spec.layers[1].feed_forward
    assert (mixture.shared.intermediate, mixture.router.correction) == (64, True)
    roles = info.weights.layers[1]
    assert roles["q"].interleaved == 16
    name = "model.layers.1.mlp.moe_statics.e_score_correction_bias"
    assert roles["router_correction"] == Recipe(name, expert=0)
    assert info.spec.attention.rope == Rope(5e5)
    assert info.spec.tied_embeddings
    unstated = load_hf({**ERNIE, "moe_num_shared_experts": None})
    assert unstated.spec.layers[1].feed_forward == mixture


def test_flash_lists_its_dense_layers(load_hf: Any) -> None:
    info = load_hf(FLASH)
    forms = [isinstance(layer.feed_forward, Experts) for layer in info.spec.layers]
    assert forms == [False, True, False]
    assert info.weights.layers[1]["router_correction"].tensor.endswith("e_score_correction_bias")


def test_qwen3_vls_keys_may_be_outside_its_text(load_hf: Any) -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {
        **text_of("qwen3_vl_text"),
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "tie_word_embeddings": True,
        "quantization_config": blocks,
    }
    info = load_hf(config)
    assert info.spec.tied_embeddings
    recipe = info.weights.layers[0]["q"]
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    assert recipe == Recipe(name, scales=f"{name}_scale_inv")


@pytest.mark.parametrize(("shape", "transposed"), [([4, 96, 64], True), ([4, 64, 96], False)])
def test_qwen3_vls_experts_are_stacked_in_two_ways(
    load_hf: Any, tmp_path: Path, shape: list[int], transposed: bool
) -> None:
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = {
        **text_of("qwen3_vl_moe_text", **experts),
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    }
    header = json.dumps({name: {"dtype": "F16", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "part.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    index = {"model.safetensors.index": {"weight_map": {name: "part.safetensors"}}}
    first = load_hf(config, **index).weights.layers[0]
    assert first["up"] == Recipe(name, rows=(32, 64), transposed=transposed)
    assert first["down"].transposed == transposed


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (SMOLLM3, {"no_rope_layers": [1, 1]}, "no_rope_layers"),
        (SMOLLM3, {"no_rope_layers": [[1], 1, 1]}, "no_rope_layers"),
        (SMOLLM3, {"use_sliding_window": True, "sliding_window": 8}, "layer_types"),
        (ERNIE, {"use_bias": True}, "use_bias"),
        (ERNIE, {"moe_layer_start_index": 4}, "moe_layer_start_index"),
        (ERNIE, {"moe_num_experts": [8, 8]}, "moe_num_experts"),
        (FLASH, {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    ],
)
def test_what_would_change_the_answers_is_refused_by_name(
    load_hf: Any, config: dict[str, object], changes: dict[str, object], key: str
) -> None:
    with pytest.raises(ModelError, match=rf": {key} "):
        load_hf({**config, **changes})
