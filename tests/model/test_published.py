"""config.json of published models: the spec that each gives, or the key that is refused.

Each has the keys that the published file has and the decoder's spec depends on.
"""

from typing import Any

import pytest
from penstock.model import ModelError
from penstock.model.spec import Attention, Experts

RMS5, RMS6 = {"rms_norm_eps": 1e-5}, {"rms_norm_eps": 1e-6}


def config(
    architecture: str,
    sizes: tuple[int, int, int, int, int, int],
    max_position: int,
    **keys: object,
) -> dict[str, object]:
    """`sizes`: hidden, layers, heads, KV heads, intermediate, vocabulary."""
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    )
    return {
        "architectures": [architecture],
        **dict(zip(names, sizes, strict=True)),
        "max_position_embeddings": max_position,
        "rope_theta": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **keys,
    }


def llama3(factor: float) -> dict[str, object]:
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


def gpt2(hidden: int, layers: int, heads: int) -> dict[str, object]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "n_embd": hidden,
        "n_head": heads,
        "n_layer": layers,
        "n_positions": 1024,
        "vocab_size": 50257,
    }


def longrope(pairs: int) -> dict[str, object]:
    factors = {f"{kind}_factor": [1.0 + i for i in range(pairs)] for kind in ("short", "long")}
    return {"type": "longrope", **factors}


YARN = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
LLAMA, MISTRAL, PHI = "LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM"
QWEN2 = {"rope_theta": 1e6, "sliding_window": 131072, "max_window_layers": 28, **RMS6}
QWEN2 |= {"use_sliding_window": False}
QWEN3 = {"head_dim": 128, "rope_theta": 1e6, "sliding_window": None, **RMS6}
GEMMA2 = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "rope_theta": 1e4,
    **RMS6,
}
GEMMA3 = {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    **RMS6,
}
GEMMA3_27B = {
    "head_dim": 128,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 168,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GLM = {
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "use_qk_norm": False,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
    "rope_theta": 1e6,
    **RMS5,
}
MOBILE = {
    "head_dim": 64,
    "intermediate_size_mlp": 2048,
    "num_local_experts": 0,
    "interleave_moe_layer_step": 0,
    "no_rope_layers": [1] * 15,
    "attention_chunk_size": 32768,
    "attn_temperature_tuning": False,
    "use_qk_norm": True,
    "rope_theta": 5e5,
    **RMS5,
}
SCOUT = {
    "hidden_act": "silu",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "vocab_size": 202048,
    "max_position_embeddings": 10485760,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "rope_scaling": {**llama3(16.0), "high_freq_factor": 1.0},
    "rope_theta": 5e5,
    **RMS5,
}


def images(architecture: str, text: dict[str, object]) -> dict[str, object]:
    """A model that takes images too, whose text part is read."""
    return {"architectures": [architecture], "text_config": text}


INDEX: dict[str, object] = {"model.safetensors.index": {"weight_map": {}}}
"""Names of tensors, which some families look at."""

PUBLISHED: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "Llama-4-Scout": (
        images("Llama4ForConditionalGeneration", SCOUT),
        {
            "layers": 48,
            "head_dim": 128,
            "experts": 16,
            "chunks": {8192, None},
            "scaling": "llama3",
            "intermediate": 8192,
        },
    ),
    "Llama-4-Maverick": (
        images(
            "Llama4ForConditionalGeneration",
            SCOUT
            | {
                "num_local_experts": 128,
                "interleave_moe_layer_step": 2,
                "use_qk_norm": False,
                "rope_scaling": None,
                "max_position_embeddings": 1048576,
            },
        ),
        {"experts": 128, "scaling": None, "max_position": 1048576, "kv_heads": 8},
    ),
    "gpt2": (gpt2(768, 12, 12), {"head_dim": 64, "tied": True, "theta": None}),
    "gpt2-xl": (gpt2(1600, 48, 25), {"head_dim": 64, "kv_heads": 25, "intermediate": 6400}),
    "Llama-2-7b": (
        config(LLAMA, (4096, 32, 32, 32, 11008, 32000), 4096, **RMS5),
        {"head_dim": 128, "theta": 1e4, "scaling": None},
    ),
    "Llama-3.1-8B": (
        config(
            LLAMA,
            (4096, 32, 32, 8, 14336, 128256),
            131072,
            rope_theta=5e5,
            rope_scaling=llama3(8.0),
            **RMS5,
        ),
        {"head_dim": 128, "scaling": "llama3", "tied": False},
    ),
    "Llama-3.2-1B": (
        config(
            LLAMA,
            (2048, 16, 32, 8, 8192, 128256),
            131072,
            head_dim=64,
            rope_theta=5e5,
            rope_scaling=llama3(32.0),
            tie_word_embeddings=True,
            **RMS5,
        ),
        {"head_dim": 64, "scaling": "llama3", "tied": True},
    ),
    "Llama-3.3-70B": (
        config(
            LLAMA,
            (8192, 80, 64, 8, 28672, 128256),
            131072,
            rope_theta=5e5,
            rope_scaling=llama3(8.0),
            **RMS5,
        ),
        {"layers": 80, "head_dim": 128},
    ),
    "SmolLM2-135M": (
        config(
            LLAMA,
            (576, 30, 9, 3, 1536, 49152),
            8192,
            rope_theta=1e5,
            tie_word_embeddings=True,
            **RMS5,
        ),
        {"head_dim": 64, "theta": 1e5},
    ),
    "TinyLlama-1.1B": (
        config(LLAMA, (2048, 22, 32, 4, 5632, 32000), 2048, **RMS5),
        {"head_dim": 64, "kv_heads": 4},
    ),
    "Mistral-7B-v0.1": (
        config(MISTRAL, (4096, 32, 32, 8, 14336, 32000), 32768, sliding_window=4096, **RMS5),
        {"windows": {4096}},
    ),
    "Mistral-7B-v0.3": (
        config(
            MISTRAL,
            (4096, 32, 32, 8, 14336, 32768),
            32768,
            rope_theta=1e6,
            sliding_window=None,
            **RMS5,
        ),
        {"windows": {None}, "theta": 1e6},
    ),
    "Mistral-Nemo": (
        config(
            MISTRAL,
            (5120, 40, 32, 8, 14336, 131072),
            131072,
            head_dim=128,
            rope_theta=1e6,
            **RMS5,
        ),
        {"head_dim": 128},
    ),
    "Qwen2.5-0.5B": (
        config(
            "Qwen2ForCausalLM",
            (896, 24, 14, 2, 4864, 151936),
            32768,
            tie_word_embeddings=True,
            **QWEN2,
        ),
        {"head_dim": 64, "qkv_bias": True, "windows": {None}},
    ),
    "Qwen2.5-7B with YaRN": (
        config(
            "Qwen2ForCausalLM",
            (3584, 28, 28, 4, 18944, 152064),
            32768,
            rope_scaling=YARN,
            **QWEN2,
        ),
        {"scaling": "yarn", "max_position": 131072},
    ),
    "QwQ-32B": (
        config("Qwen2ForCausalLM", (5120, 64, 40, 8, 27648, 152064), 131072, **QWEN2 | RMS5),
        {"head_dim": 128, "max_position": 131072},
    ),
    "Qwen3-0.6B": (
        config(
            "Qwen3ForCausalLM",
            (1024, 28, 16, 8, 3072, 151936),
            40960,
            tie_word_embeddings=True,
            **QWEN3,
        ),
        {"head_dim": 128, "qk_norm": True},
    ),
    "Qwen3-8B": (
        config("Qwen3ForCausalLM", (4096, 36, 32, 8, 12288, 151936), 40960, **QWEN3),
        {"head_dim": 128, "tied": False},
    ),
    "Qwen3-32B": (
        config("Qwen3ForCausalLM", (5120, 64, 64, 8, 25600, 151936), 40960, **QWEN3),
        {"head_dim": 128, "qkv_bias": False},
    ),
    "gemma-2-2b": (
        config(
            "Gemma2ForCausalLM",
            (2304, 26, 8, 4, 9216, 256000),
            8192,
            head_dim=256,
            query_pre_attn_scalar=256,
            **GEMMA2,
        ),
        {"windows": {4096, None}, "softcap": 50.0, "final_softcap": 30.0, "embed_scale": 48.0},
    ),
    "gemma-2-9b": (
        config(
            "Gemma2ForCausalLM",
            (3584, 42, 16, 8, 14336, 256000),
            8192,
            head_dim=256,
            query_pre_attn_scalar=256,
            **GEMMA2,
        ),
        {"embed_scale": 59.75, "scale": 1 / 16, "tied": True},
    ),
    "gemma-2-27b": (
        config(
            "Gemma2ForCausalLM",
            (4608, 46, 32, 16, 36864, 256000),
            8192,
            head_dim=128,
            query_pre_attn_scalar=144,
            **GEMMA2,
        ),
        {"embed_scale": 68.0, "scale": 1 / 12},
    ),
    "gemma-3-270m": (
        config("Gemma3ForCausalLM", (640, 18, 4, 1, 2048, 262144), 32768, **GEMMA3),
        {"embed_scale": 25.25, "head_dim": 256, "windows": {512, None}, "qk_norm": True},
    ),
    "gemma-3-1b": (
        config(
            "Gemma3ForCausalLM",
            (1152, 26, 4, 1, 6912, 262144),
            32768,
            sliding_window_pattern=6,
            **GEMMA3,
        ),
        {"embed_scale": 34.0, "theta": 1e4, "final_softcap": None},
    ),
    "gemma-3-27b": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": GEMMA3_27B,
            "torch_dtype": "bfloat16",
        },
        {"scale": 168**-0.5, "embed_scale": 73.5, "windows": {1024, None}, "layers": 62},
    ),
    "GLM-4.5-Air": (
        config("Glm4MoeForCausalLM", (4096, 46, 96, 8, 10944, 151552), 131072, **GLM)
        | {"n_routed_experts": 128, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
        {"dims": 64, "qkv_bias": True, "qk_norm": False, "experts": 128, "scale_of_experts": None},
    ),
    "GLM-4.5": (
        config("Glm4MoeForCausalLM", (5120, 92, 96, 8, 12288, 151552), 131072, **GLM)
        | {
            "n_routed_experts": 160,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 3,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
        },
        {"qk_norm": True, "experts": 160, "scale_of_experts": 2.5, "intermediate": 1536},
    ),
    "Phi-3-mini-4k": (
        config(PHI, (3072, 32, 32, 32, 8192, 32064), 4096, sliding_window=2047, **RMS5),
        {"head_dim": 96, "windows": {2047}, "scaling": None},
    ),
    "Phi-3.5-mini": (
        config(
            PHI,
            (3072, 32, 32, 32, 8192, 32064),
            131072,
            original_max_position_embeddings=4096,
            rope_scaling=longrope(48),
            sliding_window=262144,
            **RMS5,
        ),
        {"scaling": "longrope", "dims": None},
    ),
    "Phi-4": (
        config(PHI, (5120, 40, 40, 10, 17920, 100352), 16384, rope_theta=250000, **RMS5),
        {"head_dim": 128, "theta": 250000.0, "scaling": None},
    ),
    "Phi-4-mini": (
        config(
            PHI,
            (3072, 32, 24, 8, 8192, 200064),
            131072,
            original_max_position_embeddings=4096,
            partial_rotary_factor=0.75,
            rope_scaling=longrope(48),
            sliding_window=262144,
            tie_word_embeddings=True,
            **RMS5,
        ),
        {"scaling": "longrope", "dims": 96, "head_dim": 128, "tied": True},
    ),
    "MobileLLM-R1-140M": (
        config("Llama4ForCausalLM", (576, 15, 9, 3, 8192, 128256), 32768, **MOBILE),
        {"intermediate": 2048, "chunks": {32768}, "head_dim": 64},
    ),
}


def facts(spec: Any) -> dict[str, object]:
    mixers = [layer.mixer for layer in spec.layers]
    first = mixers[0]
    assert isinstance(first, Attention)
    rope, last = first.rope, spec.layers[-1].feed_forward
    scaling = rope.scaling if rope else None
    return {
        "layers": len(spec.layers),
        "kv_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "intermediate": spec.widths[0],
        "max_position": spec.max_position,
        "tied": spec.tied_embeddings,
        "theta": rope.theta if rope else None,
        "dims": rope.dims if rope else None,
        "scaling": scaling.kind if scaling else None,
        "windows": {mixer.window for mixer in mixers},
        "chunks": {mixer.chunk for mixer in mixers},
        "qkv_bias": first.qkv_bias,
        "qk_norm": first.qk_norm is not None,
        "softcap": first.softcap,
        "experts": spec.experts,
        "scale_of_experts": last.router.scale if isinstance(last, Experts) else None,
        "scale": first.scale,
        "embed_scale": spec.embed_scale,
        "final_softcap": spec.final_softcap,
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_spec(load_hf: Any, name: str) -> None:
    published, expected = PUBLISHED[name]
    found = facts(load_hf(published, **INDEX).spec)
    assert {key: found[key] for key in expected} == expected


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "gemma-7b": ({"architectures": ["GemmaForCausalLM"]}, "architectures"),
    "falcon-7b": ({"architectures": ["FalconForCausalLM"]}, "architectures"),
    "Phi-3-small": ({"architectures": ["Phi3SmallForCausalLM"]}, "architectures"),
    "bert-base": ({"architectures": ["BertForMaskedLM"]}, "architectures"),
    "Qwen3-Next": ({"architectures": ["Qwen3NextForCausalLM"]}, "architectures"),
    "Llama-2-7B-GPTQ": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "internlm2 as Llama": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type"),
    "embeddinggemma": (
        config("Gemma3ForCausalLM", (768, 24, 3, 1, 1152, 262144), 2048, **GEMMA3)
        | {"use_bidirectional_attention": True},
        "use_bidirectional_attention",
    ),
    "Yi with another activation": ({"hidden_act": "relu2"}, "hidden_act"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_key(load_hf: Any, name: str) -> None:
    published, key = REFUSED[name]
    with pytest.raises(ModelError, match=rf"\b{key} = "):
        load_hf(published, **INDEX)
