"""Llama 4 with and without experts, from config.json and from GGUF keys."""

from pathlib import Path
from typing import Any

import pytest

from penstock.model import ModelError
from penstock.model.spec import Attention, Experts, Mlp, Recipe, Router, Temperature
from tests.model.conftest import CONFIG

LLAMA4: dict[str, object] = {
    "architectures": ["Llama4ForCausalLM"],
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "intermediate_size_mlp": 128,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 2,
    "head_dim": 16,
}
EXPERT = Mlp("gated", 64, "silu")
MIXTURE = Experts(
    16, 1, EXPERT, Router("sigmoid", after_choice=True, weight_on_input=True), shared=EXPERT
)
DENSE = Mlp("gated", 128, "silu")


def mixers(info: Any) -> list[Attention]:
    return [layer.mixer for layer in info.spec.layers]


def test_layers_with_rope_have_chunks_and_the_others_a_temperature(load_hf: Any) -> None:
    info = load_hf({**LLAMA4, "moe_layers": []})
    first, *_, last = mixers(info)
    assert (first.chunk, first.qk_norm_after, first.temperature) == (8192, 1e-5, None)
    assert (last.chunk, last.rope, last.qk_norm_after) == (None, None, None)
    assert last.temperature == Temperature(8192.0, 0.1)
    assert info.spec.widths == (128,)
    layer = info.weights.layers[0]
    assert layer["q"] == Recipe("model.layers.0.self_attn.q_proj.weight", interleaved=16)
    assert layer["up"] == Recipe("model.layers.0.feed_forward.up_proj.weight")


@pytest.mark.parametrize(
    ("changes", "mixed"),
    [
        ({}, [1, 3]),
        ({"interleave_moe_layer_step": 1}, [0, 1, 2, 3]),
        ({"interleave_moe_layer_step": 0}, []),
        ({"moe_layers": [2]}, [2]),
    ],
)
def test_some_layers_have_experts(
    load_hf: Any, changes: dict[str, object], mixed: list[int]
) -> None:
    forms = [layer.feed_forward for layer in load_hf({**LLAMA4, **changes}).spec.layers]
    assert forms == [MIXTURE if i in mixed else DENSE for i in range(4)]


def test_experts_are_stacked_with_gate_before_up(load_hf: Any) -> None:
    layer = load_hf(LLAMA4).weights.layers[1]
    at = "model.layers.1.feed_forward."
    assert layer["up"] == Recipe(f"{at}experts.gate_up_proj", transposed=True, rows=(64, 128))
    assert layer["down"] == Recipe(f"{at}experts.down_proj", transposed=True)
    assert layer["router"] == Recipe(f"{at}router.weight")
    assert layer["shared_up"] == Recipe(f"{at}shared_expert.up_proj.weight")


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("language_model.model.", "language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
    ],
)
def test_the_text_model_of_one_with_images(
    load_hf: Any, tmp_path: Path, prefix: str, head: str
) -> None:
    index = f'{{"weight_map": {{"{prefix}embed_tokens.weight": "x"}}}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    text = {**CONFIG, **LLAMA4}
    del text["architectures"]
    outer = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    weights = load_hf(outer).weights
    assert weights.embed == Recipe(f"{prefix}embed_tokens.weight")
    assert weights.head == Recipe(head)
    at = f"{prefix}layers.3."
    assert weights.layers[3]["gate"].tensor == f"{at}feed_forward.experts.gate_up_proj"
    assert weights.layers[3]["k"] == Recipe(f"{at}self_attn.k_proj.weight", interleaved=16)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"moe_layers": [4]}, "moe_layers = [4]"),
        ({"moe_layers": "all"}, "moe_layers = 'all'"),
        ({"num_local_experts": None}, "num_local_experts is missing"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok = 17"),
        ({"no_rope_layers": [1]}, "no_rope_layers = [1]"),
        ({"attention_chunk_size": 0}, "attention_chunk_size = 0"),
        ({"architectures": ["Llama4ForConditionalGeneration"]}, "text_config = None"),
    ],
)
def test_refusals(load_hf: Any, changes: dict[str, object], fault: str) -> None:
    with pytest.raises(ModelError) as refusal:
        load_hf({**LLAMA4, **changes})
    assert fault in str(refusal.value)


GGUF: dict[str, object] = {
    "block_count": 4,
    "context_length": 2048,
    "embedding_length": 96,
    "feed_forward_length": 128,
    "expert_feed_forward_length": 64,
    "expert_count": 16,
    "expert_used_count": 1,
    "interleave_moe_layer_step": 2,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 500000.0,
}


def named(**changes: object) -> dict[str, object]:
    keys = {f"llama4.{key}": value for key, value in (GGUF | changes).items()}
    return {"general.architecture": "llama4", **keys}


def test_gguf(load_gguf: Any) -> None:
    info = load_gguf(named())
    assert [layer.feed_forward for layer in info.spec.layers] == [DENSE, MIXTURE] * 2
    first, *_, last = mixers(info)
    assert (first.chunk, first.qk_norm_after, first.temperature) == (8192, 1e-5, None)
    assert (last.chunk, last.rope, last.temperature) == (None, None, Temperature(8192.0, 0.1))
    layer = info.weights.layers[1]
    assert layer["q"] == Recipe("blk.1.attn_q.weight", interleaved=16)
    assert layer["up"] == Recipe("blk.1.ffn_up_exps.weight")
    assert layer["shared_down"] == Recipe("blk.1.ffn_down_shexp.weight")


def test_a_gguf_file_of_128_experts_is_mavericks_without_norms(load_gguf: Any) -> None:
    assert mixers(load_gguf(named(expert_count=128)))[0].qk_norm_after is None


def test_a_gguf_file_whose_attention_has_no_chunks_is_refused(load_gguf: Any) -> None:
    with pytest.raises(ModelError, match="sliding_window = 0"):
        load_gguf(named(**{"attention.sliding_window": 0}))
