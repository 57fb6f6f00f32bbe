"""LFM2 and LFM2-MoE: their shapes, tensor names and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.model import ModelError, ModelInfo, load_model
from penstock.model.load import read_model
from penstock.model.sharding import plan_grid
from penstock.model.sizing import kv_spec, parameters, state_bytes
from penstock.model.spec import (
    Attention,
    Codes,
    Experts,
    Mlp,
    Norm,
    Recipe,
    Rope,
    Router,
    ShortConvolution,
    StateShape,
)

FULL = [2, 5, 8, 10, 12, 14]
CONFIG: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": FULL,
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "vocab_size": 65536,
}
"""Keys of LFM2-1.2B on which a decoder depends."""
MOE: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "conv_L_cache": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "max_position_embeddings": 512,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_dense_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "routed_scaling_factor": 1.5,
    "use_expert_bias": True,
    "vocab_size": 256,
}
GGUF: dict[str, Any] = {
    "general.architecture": "lfm2",
    "lfm2.attention.head_count": 4,
    "lfm2.attention.head_count_kv": [0, 2, 0],
    "lfm2.attention.layer_norm_rms_epsilon": 1e-5,
    "lfm2.block_count": 3,
    "lfm2.context_length": 512,
    "lfm2.embedding_length": 64,
    "lfm2.feed_forward_length": 96,
    "lfm2.rope.freq_base": 1e6,
    "lfm2.shortconv.l_cache": 3,
    "tokenizer.ggml.tokens": {"len": 256, "type": "string"},
}
"""Keys that llama.cpp's converter writes (conversion/lfm2.py)."""
Reader = Callable[..., ModelInfo]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """`read(config, key=value)`: the model of a config.json with keys changed; REMOVED removes."""

    def of(config: dict[str, Any], **changes: Any) -> ModelInfo:
        changed = {**config, **changes}
        kept = {key: value for key, value in changed.items() if value is not REMOVED}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        (tmp_path / "model.safetensors").touch()
        return read_model(tmp_path)

    return of


@pytest.fixture
def read_gguf(tmp_path: Path) -> Reader:
    def of(changes: dict[str, Any] | None = None, prefix: str = "lfm2.") -> ModelInfo:
        changed = {**GGUF, **(changes or {})}
        metadata = {
            key.replace("lfm2.", prefix, 1): value
            for key, value in changed.items()
            if value is not REMOVED
        }
        file = tmp_path / "model.gguf"
        file.write_bytes(b"GGUF")
        rows = [("token_embd.weight", "F32", [256, 64])]
        return read_model(file, lambda _: {"metadata": metadata, "tensors": rows, "ends": ()})

    return of


REMOVED = object()


def test_the_published_model_has_its_size(read: Reader) -> None:
    """1,170,340,608 parameters on the hub; 12,288 bytes of KV a token (research of 2026)."""
    spec = read(CONFIG).spec
    kinds = [type(layer.mixer) for layer in spec.layers]
    assert [i for i, kind in enumerate(kinds) if kind is Attention] == FULL
    assert spec.first_attention == Attention(32, 8, 64, rope=Rope(1e6), qk_norm=Norm("rms", 1e-5))
    convolution = spec.layers[0].mixer
    assert convolution == ShortConvolution(2048, 3, 8)
    assert convolution.state == StateShape(8, 512)
    assert {layer.feed_forward for layer in spec.layers} == {Mlp("gated", 8192, "silu")}
    assert spec.tied_embeddings
    assert parameters(spec) == 1_170_340_608
    alone = plan_grid(spec, 1, 1)
    (group,) = kv_spec(spec, alone, 0, block_size=1).groups
    assert (list(group.layers), group.block_bytes) == (FULL, 12_288)
    assert state_bytes(spec, alone, 0) == 10 * 2 * 2048 * 4
    parts = plan_grid(spec, 4, 2)
    states = [state_bytes(spec, parts, rank) for rank in range(8)]
    assert (len(set(states[:4])), sum(states)) == (1, 10 * 2 * 2048 * 4)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"block_ff_dim": 6656}, 4608),
        ({"block_ff_dim": REMOVED, "intermediate_size": 12288}, 8192),
        ({"intermediate_size": 1}, 8192),
        ({"block_ffn_dim_multiplier": 1.3}, 10752),
        ({"block_ffn_dim_multiplier": REMOVED, "block_multiple_of": REMOVED}, 8192),
        ({"block_ffn_dim_multiplier": None, "block_ff_dim": 10000}, 6666),
        ({"block_auto_adjust_ff_dim": False}, 12288),
    ],
)
def test_the_width_is_computed(read: Reader, changes: dict[str, Any], width: int) -> None:
    assert read(CONFIG, **changes).spec.widths == (width,)


def test_keys_of_both_generations_of_transformers(read: Reader) -> None:
    kinds = ["conv" if i % 2 else "full_attention" for i in range(16)]
    new = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "layer_types": kinds}
    spec = read(CONFIG, rope_theta=REMOVED, tie_word_embeddings=False, **new).spec
    assert spec.attention.rope == Rope(5e5)
    assert isinstance(spec.layers[0].mixer, Attention)
    assert not spec.tied_embeddings
    old = read(CONFIG, rope_theta=REMOVED, tie_embedding=False, tie_word_embeddings=True).spec
    assert (old.attention.rope, old.tied_embeddings) == (Rope(1e6), False)
    without = read(CONFIG, full_attn_idxs=REMOVED).spec
    assert not any(isinstance(layer.mixer, ShortConvolution) for layer in without.layers)


def test_tensors_have_their_names(read: Reader, read_gguf: Reader) -> None:
    info = read(CONFIG)
    assert info.weights.final_norm == Recipe("model.embedding_norm.weight")
    convolution, attention = info.weights.layers[0], info.weights.layers[2]
    at = "model.layers.0.conv."
    assert convolution["conv_b"] == Recipe(f"{at}in_proj.weight", rows=(0, 2048))
    assert convolution["conv_c"] == Recipe(f"{at}in_proj.weight", rows=(2048, 4096))
    assert convolution["conv_x"] == Recipe(f"{at}in_proj.weight", rows=(4096, 6144))
    assert convolution["conv"] == Recipe(f"{at}conv.weight")
    assert convolution["up"] == Recipe("model.layers.0.feed_forward.w3.weight")
    assert attention["o"] == Recipe("model.layers.2.self_attn.out_proj.weight")
    assert not {"q", "conv_bias"} & convolution.keys()
    biased = read(CONFIG, conv_bias=True).weights.layers[0]
    assert biased["conv_x_bias"] == Recipe(f"{at}in_proj.bias", rows=(4096, 6144))
    assert biased["conv_bias"] == Recipe(f"{at}conv.bias")
    assert biased["conv_out_bias"] == Recipe(f"{at}out_proj.bias")

    info = read_gguf()
    assert [layer.mixer for layer in info.spec.layers[:2]] == [
        ShortConvolution(64, 3, 2),
        Attention(4, 2, 16, rope=Rope(1e6), qk_norm=Norm("rms", 1e-5)),
    ]
    assert info.weights.final_norm == Recipe("token_embd_norm.weight")
    assert info.weights.layers[2]["conv_c"] == Recipe(
        "blk.2.shortconv.in_proj.weight", rows=(64, 128)
    )
    assert info.weights.layers[1]["q_norm"] == Recipe("blk.1.attn_q_norm.weight")


def test_quantised_projections_of_convolutions(read: Reader) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    at = "model.layers.0.conv."
    convolution = read(CONFIG, quantization_config=settings).weights.layers[0]
    codes = Codes("gptq", 4, f"{at}in_proj.scales", 1, 128)
    assert convolution["conv_c"] == Recipe(f"{at}in_proj.qweight", rows=(2048, 4096), codes=codes)
    assert convolution["conv_out"].tensor == f"{at}out_proj.qweight"
    assert convolution["conv"] == Recipe(f"{at}conv.weight")


def test_a_mixture_has_dense_layers_first(read: Reader, read_gguf: Reader) -> None:
    info = read(MOE)
    router = Router("sigmoid", correction=True, normalise=True, epsilon=1e-6, scale=1.5)
    mixture = Experts(8, 2, Mlp("gated", 32, "silu"), router)
    forms = [layer.feed_forward for layer in info.spec.layers]
    assert forms == [Mlp("gated", 96, "silu")] * 2 + [mixture] * 2
    at = "model.layers.2.feed_forward."
    assert info.weights.layers[2]["down"] == Recipe(f"{at}experts.{{e}}.w2.weight")
    assert info.weights.layers[2]["router_correction"] == Recipe(f"{at}expert_bias")

    keys = {
        "general.architecture": "lfm2moe",
        "lfm2.expert_count": 8,
        "lfm2.expert_used_count": 2,
        "lfm2.expert_feed_forward_length": 32,
        "lfm2.expert_gating_func": 2,
        "lfm2.leading_dense_block_count": 1,
    }
    info = read_gguf(keys, "lfm2moe.")
    assert [isinstance(layer.feed_forward, Experts) for layer in info.spec.layers] == [
        False,
        True,
        True,
    ]
    assert info.weights.layers[1]["router_correction"] == Recipe("blk.1.exp_probs_b.bias")
    with pytest.raises(ModelError, match=r"lfm2moe\.expert_gating_func = 1"):
        read_gguf({**keys, "lfm2.expert_gating_func": 1}, "lfm2moe.")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"full_attn_idxs": []}, "layer_types .*at least one layer of full_attention"),
    ({"full_attn_idxs": [16]}, "full_attn_idxs"),
    ({"full_attn_idxs": 3}, "full_attn_idxs"),
    ({"layer_types": ["conv"] * 15}, "layer_types"),
    ({"layer_types": ["full_attention"] * 15 + [["mamba"]]}, "layer_types"),
    ({"conv_L_cache": 0}, "conv_L_cache = 0"),
    ({"conv_L_cache": 1}, "conv_L_cache = 1"),
    ({"conv_L_cache": 2**31}, "conv_L_cache"),
    ({"conv_L_cache": REMOVED}, "conv_L_cache is missing"),
    ({"block_ff_dim": 0}, "block_ff_dim = 0"),
    ({"block_ff_dim": 2**31}, "block_ff_dim"),
    ({"block_ff_dim": 1}, "block_ff_dim = 1"),
    ({"block_multiple_of": 0}, "block_multiple_of = 0"),
    ({"block_ffn_dim_multiplier": 1e300}, "block_ffn_dim_multiplier"),
    ({"num_key_value_heads": 0}, "num_key_value_heads = 0"),
    ({"num_key_value_heads": 5}, "num_key_value_heads = 5.* query heads"),
    (
        {"num_attention_heads": 24, "num_key_value_heads": 3, "head_dim": 64},
        "num_key_value_heads = 3.* channels of convolutions",
    ),
    ({"num_key_value_heads": REMOVED}, "num_key_value_heads is missing"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: FP8"),
]


@pytest.mark.parametrize(("changes", "what"), REFUSED)
def test_an_impossible_model_is_refused_by_its_key(
    read: Reader, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(ModelError, match=what):
        read(CONFIG, **changes)


@pytest.mark.parametrize(
    "counts", [2, [0, 0, 0], [0, 2], [2, 1, 0], [], ["2", 0, 0], [-1, -1, -1], [0, 5, 0]]
)
def test_heads_of_a_gguf_file_are_those_of_each_layer(read_gguf: Reader, counts: object) -> None:
    with pytest.raises(ModelError, match=r"lfm2\.attention\.head_count_kv"):
        read_gguf({"lfm2.attention.head_count_kv": counts})


def test_a_model_with_short_convolutions_is_not_served_yet(read: Reader, tmp_path: Path) -> None:
    read(CONFIG)
    with pytest.raises(ModelError, match="short convolutions are not supported yet"):
        load_model(tmp_path)
