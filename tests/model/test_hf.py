"""config.json to DecoderSpec."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.model import ModelError, ModelInfo
from penstock.model.spec import (
    Attention,
    Experts,
    LinearScaling,
    Llama3Scaling,
    Mlp,
    Norm,
    Recipe,
    Router,
)

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def windows(info: ModelInfo) -> tuple[int | None, ...]:
    return tuple(layer.mixer.window for layer in info.spec.layers)  # type: ignore[union-attr]


def test_llama(load_hf: Any) -> None:
    info = load_hf()
    norm = {"kind": "rms", "eps": 1e-5}
    assert json.loads(info.spec.to_json()) == {
        "family": "llama",
        "hidden": 96,
        "vocab": 1000,
        "max_position": 2048,
        "final_norm": norm,
        "kinds": [
            {
                "mixer_norms": {"before": norm},
                "mixer": {
                    "kind": "gqa",
                    "heads": 6,
                    "kv_heads": 2,
                    "head_dim": 16,
                    "rope": {"theta": 50000.0},
                },
                "feed_forward_norms": {"before": norm},
                "feed_forward": {"kind": "gated", "intermediate": 256, "activation": "silu"},
            }
        ],
        "layers": [0, 0, 0],
    }
    assert info.source == "safetensors"
    assert info.weights.head == Recipe("lm_head.weight")
    assert len(info.weights.layers) == 3
    assert info.weights.layers[2]["q"] == Recipe("model.layers.2.self_attn.q_proj.weight")
    assert not any(
        role.endswith(("_bias", "q_norm", "k_norm"))
        for layer in info.weights.layers
        for role in layer
    )


def test_tied_embeddings_have_no_head(load_hf: Any) -> None:
    info = load_hf({"tie_word_embeddings": True})
    assert info.spec.tied_embeddings
    assert info.weights.head is None


def test_attention_bias_of_llama_is_on_all_four(load_hf: Any) -> None:
    layer = load_hf({"attention_bias": True}).weights.layers[1]
    assert [role for role in layer if role.endswith("_bias")] == [
        "q_bias",
        "k_bias",
        "v_bias",
        "o_bias",
    ]
    assert layer["o_bias"] == Recipe("model.layers.1.self_attn.o_proj.bias")


def test_mlp_bias_of_llama_is_on_all_three(load_hf: Any) -> None:
    info = load_hf({"mlp_bias": True})
    assert info.spec.layers[0].feed_forward.bias
    biases = {
        role: recipe.tensor for role, recipe in info.weights.layers[1].items() if "bias" in role
    }
    assert biases == {
        f"{role}_bias": f"model.layers.1.mlp.{role}_proj.bias" for role in ("gate", "up", "down")
    }


def test_head_dim_and_kv_heads_have_defaults(load_hf: Any) -> None:
    assert load_hf({"head_dim": 32}).spec.attention.head_dim == 32
    assert load_hf({"num_key_value_heads": None}).spec.attention.kv_heads == 6


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": None}, 1e4, None),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 5e4, LinearScaling(4.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            5e4,
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "type": "?", **LLAMA3}},
            5e4,
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}, 7e5, None),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5, **LLAMA3}},
            5,
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_parameters": {"rope_theta": 3.0}, "rope_scaling": {"type": "yarn"}}, 3.0, None),
    ],
)
def test_rope_spellings(
    load_hf: Any, changes: dict[str, object], theta: float, scaling: object
) -> None:
    rope = load_hf(changes).spec.attention.rope
    assert rope.theta == theta
    assert rope.scaling == scaling


def test_mistral_windows_are_uniform(load_hf: Any) -> None:
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert windows(load_hf({**mistral, "sliding_window": 128})) == (128, 128, 128)
    assert windows(load_hf({**mistral, "sliding_window": None})) == (None, None, None)


def test_llama_has_no_window_whatever_its_config_says(load_hf: Any) -> None:
    assert windows(load_hf({"sliding_window": 128})) == (None, None, None)


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 64}, (None, None, None)),
        (
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
            (None, None, 64),
        ),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, (None,) * 3),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 64,
                "layer_types": [SLIDING, FULL, SLIDING],
            },
            (64, None, 64),
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_windows(
    load_hf: Any, architecture: str, changes: dict[str, object], expected: object
) -> None:
    assert windows(load_hf({"architectures": [architecture], **changes})) == expected


def test_qwen2_has_biases_without_saying_so(load_hf: Any) -> None:
    info = load_hf({"architectures": ["Qwen2ForCausalLM"]})
    assert info.spec.attention.qkv_bias
    assert not info.spec.attention.out_bias
    assert info.weights.layers[1]["k_bias"] == Recipe("model.layers.1.self_attn.k_proj.bias")
    assert "o_bias" not in info.weights.layers[1]


def test_qwen3_has_norms_and_its_own_head_size(load_hf: Any) -> None:
    info = load_hf({"architectures": ["Qwen3ForCausalLM"]})
    assert info.spec.attention.qk_norm == Norm("rms", 1e-5)
    assert info.spec.attention.head_dim == 128
    assert info.weights.layers[1]["q_norm"] == Recipe("model.layers.1.self_attn.q_norm.weight")


REFUSALS = [
    (
        {"architectures": ["BertForMaskedLM"]},
        "architectures = ['BertForMaskedLM']",
        "Qwen3ForCausalLM",
    ),
    ({"architectures": None}, "architectures = None", "LlamaForCausalLM"),
    ({"architectures": [[]]}, "architectures = [[]]", "LlamaForCausalLM"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu'", "silu"),
    ({"hidden_act": None}, "hidden_act = None", "silu"),
    (
        {"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 32}},
        "quantization_config: GPTQ (3-bit integers, a scale for 32 inputs, symmetric)",
        "GGUF",
    ),
    ({"num_local_experts": 8}, "num_local_experts = 8", "dense"),
    ({"mlp_bias": 1}, "mlp_bias = 1", "false"),
    (
        {"rope_scaling": {"rope_type": "longrope", "factor": 4}},
        "rope_scaling.rope_type = 'longrope'",
        "llama3 yarn",
    ),
    ({"rope_scaling": {"type": "dynamic", "factor": 4}}, "rope_scaling.type = 'dynamic'", "linear"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing", ""),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor = 0", "from 1e-06"),
    ({"rope_scaling": "linear"}, "rope_scaling = 'linear'", "an object"),
    ({"rope_parameters": {FULL: {"rope_theta": 1e4}}}, "rope_parameters = ", "one set"),
    (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}},
        "high_freq_factor = 0.5",
        "at least low_freq_factor, 1",
    ),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5", "whole head"),
    ({"rope_theta": float("nan")}, "rope_theta = nan", "a number from 1"),
    ({"rope_theta": float("inf")}, "rope_theta = inf", "a number from 1"),
    ({"hidden_size": 0}, "hidden_size = 0", "an integer from 1"),
    ({"hidden_size": 96.0}, "hidden_size = 96.0", "an integer"),
    ({"hidden_size": True}, "hidden_size = True", "an integer"),
    ({"hidden_size": "96"}, "hidden_size = '96'", "an integer"),
    ({"hidden_size": 10**12}, "hidden_size = 1000000000000", "an integer"),
    ({"vocab_size": None}, "vocab_size is missing", ""),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000", "from 1 to 1024"),
    ({"num_key_value_heads": 4}, "num_key_value_heads = 4", "divisor of the 6"),
    ({"num_key_value_heads": 12}, "num_key_value_heads = 12", "from 1 to 6"),
    ({"head_dim": 15}, "head_dim = 15", "even"),
    ({"rms_norm_eps": 0}, "rms_norm_eps = 0", "a number"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'", "true or false"),
    (
        {"architectures": ["MistralForCausalLM"], "sliding_window": -1},
        "sliding_window = -1",
        "integer",
    ),
    (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": [FULL],
        },
        "layer_types = ['full_attention']",
        "3 entries",
    ),
    (
        {
            "architectures": ["Qwen3ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": [[]] * 3,
        },
        "layer_types = [[], [], []]",
        "3 entries",
    ),
]


@pytest.mark.parametrize(("changes", "fault", "remedy"), REFUSALS)
def test_refusals_name_file_key_value_and_remedy(
    load_hf: Any, changes: dict[str, object], fault: str, remedy: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        load_hf(changes)
    message = str(refusal.value)
    assert "config.json: " in message
    assert fault in message
    assert remedy in message


def test_long_values_are_shortened_in_messages(load_hf: Any) -> None:
    with pytest.raises(ModelError) as refusal:
        load_hf({"hidden_act": "x" * 10_000})
    assert len(str(refusal.value)) < 500


GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "activation_function": "gelu_new",
    "n_embd": 96,
    "n_head": 6,
    "n_layer": 3,
    "n_positions": 512,
    "layer_norm_epsilon": 1e-5,
}
EMPTY = b"\x02\0\0\0\0\0\0\0{}"


@pytest.fixture
def load_gpt2(load_hf: Any, tmp_path: Path) -> Any:
    """`load_gpt2({key: value}, weights)`: a directory with these bytes as its weights."""

    def load(changes: dict[str, object] | None = None, weights: bytes = EMPTY) -> ModelInfo:
        (tmp_path / "model.safetensors").write_bytes(weights)
        return cast("ModelInfo", load_hf({**GPT2, **(changes or {})}))

    return load


def test_gpt2(load_gpt2: Any) -> None:
    info = load_gpt2()
    assert info.spec.attention == Attention(6, 6, 16, qkv_bias=True, out_bias=True)
    assert info.spec.layers[0].feed_forward == Mlp("plain", 4 * 96, "gelu_tanh", bias=True)
    assert info.spec.final_norm == Norm("layer", 1e-5, bias=True)
    assert info.spec.learned_positions
    assert info.spec.tied_embeddings
    layer = info.weights.layers[2]
    c_attn = "transformer.h.2.attn.c_attn"
    assert layer["k"] == Recipe(f"{c_attn}.weight", rows=(96, 192), transposed=True)
    assert layer["v_bias"] == Recipe(f"{c_attn}.bias", rows=(192, 288))
    assert layer["down"] == Recipe("transformer.h.2.mlp.c_proj.weight", transposed=True)
    assert layer["mixer_norm_bias"] == Recipe("transformer.h.2.ln_1.bias")


def test_gpt2_as_published_has_no_prefix(load_gpt2: Any) -> None:
    header = b'{"wte.weight": {}}'
    info = load_gpt2(weights=len(header).to_bytes(8, "little") + header)
    assert info.weights.embed == Recipe("wte.weight")
    assert info.weights.layers[0]["up_bias"] == Recipe("h.0.mlp.c_fc.bias")
    assert load_gpt2({"tie_word_embeddings": False}).weights.head == Recipe("lm_head.weight")


@pytest.mark.parametrize(
    ("changes", "fault", "remedy"),
    [
        ({"activation_function": "relu"}, "activation_function = 'relu'", "gelu_new"),
        ({"n_head": 5}, "n_head = 5", "a divisor of the hidden size, 96"),
        ({"scale_attn_weights": False}, "scale_attn_weights = False", "true"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx = True",
            "false",
        ),
    ],
)
def test_refusals_of_gpt2(
    load_gpt2: Any, changes: dict[str, object], fault: str, remedy: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        load_gpt2(changes)
    assert fault in str(refusal.value)
    assert remedy in str(refusal.value)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (b"", "not valid JSON"),
        (b"\xff" * 8, "a header of"),
        (b"\x01\0\0\0\0\0\0\0{", "not valid JSON"),
    ],
)
def test_a_damaged_header_of_tensors_is_refused(
    load_gpt2: Any, weights: bytes, problem: str
) -> None:
    with pytest.raises(ModelError, match=rf"model\.safetensors: .*{problem}"):
        load_gpt2(weights=weights)


QWEN3_MOE: dict[str, object] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
EXPERT = Mlp("gated", 768, "silu")


def test_qwen3_moe(load_hf: Any) -> None:
    info = load_hf(QWEN3_MOE)
    mixture = Experts(128, 8, EXPERT, Router("softmax", normalise=True))
    assert [layer.feed_forward for layer in info.spec.layers] == [mixture] * 3
    assert info.spec.attention.head_dim == 128
    layer = info.weights.layers[2]
    assert layer["down"] == Recipe("model.layers.2.mlp.experts.{e}.down_proj.weight")
    assert layer["router"] == Recipe("model.layers.2.mlp.gate.weight")
    written = json.loads(info.spec.to_json())["kinds"][0]["feed_forward"]
    assert written == {
        "kind": "moe",
        "experts": 128,
        "experts_per_token": 8,
        "expert": {"kind": "gated", "intermediate": 768, "activation": "silu"},
        "router": {"score": "softmax", "normalise": True},
    }


def test_recipes_of_many_experts_are_short(load_hf: Any) -> None:
    info = load_hf({**QWEN3_MOE, "num_hidden_layers": 48})
    assert len(info.weights.to_json()) < 60_000


def test_qwen3_in_8_bit_floats_has_scales_beside_them(load_hf: Any) -> None:
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    layer = load_hf({**QWEN3_MOE, "quantization_config": stored}).weights.layers[1]
    with_scales = {role for role, recipe in layer.items() if recipe.scales}
    assert with_scales == {"q", "k", "v", "o", "gate", "up", "down"}
    assert layer["up"].scales == "model.layers.1.mlp.experts.{e}.up_proj.weight_scale_inv"
    other = {**stored, "weight_block_size": [64, 64]}
    with pytest.raises(ModelError, match="weight_block_size"):
        load_hf({**QWEN3_MOE, "quantization_config": other})
    beside = {"producer": {"name": "modelopt"}}
    again = load_hf({**QWEN3_MOE, "quantization_config": stored}, hf_quant_config=beside)
    assert again.weights.layers[1] == layer


def test_transformers_5_writes_the_experts_under_another_name(load_hf: Any) -> None:
    renamed = {**QWEN3_MOE, "num_experts": None, "num_local_experts": 16}
    assert load_hf(renamed).spec.experts == 16


@pytest.mark.parametrize(
    ("changes", "mixed"),
    [
        ({"mlp_only_layers": [1]}, [True, False, True]),
        ({"decoder_sparse_step": 2}, [False, True, False]),
        ({"decoder_sparse_step": 1, "mlp_only_layers": None}, [True, True, True]),
    ],
)
def test_layers_without_experts(
    load_hf: Any, changes: dict[str, object], mixed: list[bool]
) -> None:
    info = load_hf({**QWEN3_MOE, **changes})
    layers = info.spec.layers
    assert [isinstance(layer.feed_forward, Experts) for layer in layers] == mixed
    plain = mixed.index(False) if False in mixed else None
    if plain is not None:
        assert layers[plain].feed_forward == Mlp("gated", 256, "silu")
        recipe = info.weights.layers[plain]["gate"]
        assert recipe == Recipe(f"model.layers.{plain}.mlp.gate_proj.weight")


def test_qwen2_moe_has_a_gated_shared_expert(load_hf: Any) -> None:
    own = {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 5632}
    info = load_hf({**QWEN3_MOE, **own, "norm_topk_prob": False})
    assert info.spec.layers[0].feed_forward == Experts(
        128, 8, EXPERT, Router("softmax"), shared=Mlp("gated", 5632, "silu"), shared_gate=True
    )
    assert info.spec.attention.qkv_bias
    layer = info.weights.layers[1]
    assert layer["shared_up"] == Recipe("model.layers.1.mlp.shared_expert.up_proj.weight")
    factor = Recipe("model.layers.1.mlp.shared_expert_gate.weight", expert=0)
    assert layer["shared_factor"] == factor


def test_mixtral(load_hf: Any) -> None:
    own = {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64}
    info = load_hf({"architectures": ["MixtralForCausalLM"], **own})
    expert = Mlp("gated", 256, "silu")
    mixture = Experts(8, 2, expert, Router("softmax", normalise=True))
    assert info.spec.layers[1].feed_forward == mixture
    assert windows(info) == (64, 64, 64)
    layer = info.weights.layers[1]
    assert layer["up"] == Recipe("model.layers.1.block_sparse_moe.experts.{e}.w3.weight")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_experts": 0}, "num_experts = 0"),
        ({"num_experts": 1 << 31}, "num_experts = 2147483648"),
        ({"num_experts": None}, "num_local_experts is missing"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok = 129"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok = 0"),
        ({"moe_intermediate_size": -1}, "moe_intermediate_size = -1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        ({"mlp_only_layers": "1"}, "mlp_only_layers = '1'"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob = 'yes'"),
    ],
)
def test_experts_that_cannot_be_are_refused(
    load_hf: Any, changes: dict[str, object], fault: str
) -> None:
    with pytest.raises(ModelError, match=fault):
        load_hf({**QWEN3_MOE, **changes})
