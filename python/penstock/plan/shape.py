"""Sizes of a decoder from a `config.json` alone, for planning only.

The families in `penstock.model` refuse what the decoder cannot compute. Here only sizes count, so
models that no backend runs yet can be planned. Keys are read by what they mean, not by the model's
name; what would be sized wrongly is refused by its key.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Mlp,
    Norm,
    Norms,
    Router,
)

MOST = 1 << 26
LARGEST = 1 << 40
NORM = Norm("rms", 1e-6)
NORMS = Norms(before=NORM)
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_UNSIZED = {
    "hybrid_override_pattern": "layers of one sublayer each",
    "layers_block_type": "layers of one sublayer each",
    "mamba_num_heads": "layers of one sublayer each",
    "block_configs": "layers that differ one by one",
    "linear_attn_config": "linear attention with latent attention",
    "compress_ratios": "compressed attention",
    "num_global_key_value_heads": "layers with keys that are values",
    "sparse_attention_config": "sparse attention with an index of its own",
    "routed_expert_hidden_size": "experts over another width",
}
"""Keys of shapes that are not sized yet: what they would say."""


def text_part(values: Mapping[str, object]) -> Mapping[str, object]:
    """The language model's keys, of a model with an image tower too."""
    for key in ("text_config", "llm_config", "language_config"):
        nested = values.get(key)
        if isinstance(nested, dict):
            outer = {k: values[k] for k in ("tie_word_embeddings",) if k in values}
            return {**outer, **nested}
    return values


def read_shape(config: Fields) -> DecoderSpec:
    """The sizes; norms, rotations and routers are stand-ins. ModelError names a key that is missing
    or that asks for a shape that is not sized.
    """
    for key, what in _UNSIZED.items():
        if config.get(key) is not None:
            raise ModelError(config.file, f"{key}: {what} cannot be sized yet")
    count = config.integer("num_hidden_layers", 1, 1 << 12)
    return DecoderSpec(
        family="",
        hidden=config.integer("hidden_size", 1, MOST),
        vocab=config.integer("vocab_size", 1, MOST),
        max_position=config.integer("max_position_embeddings", 1, LARGEST),
        final_norm=NORM,
        layers=tuple(
            Layer(NORMS, _mixer(config, i), NORMS, _feed_forward(config, i)) for i in range(count)
        ),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
    )


def _mixer(config: Fields, i: int) -> Mixer:
    if config.get("kv_lora_rank") is not None:
        return _latent(config)
    kind = _layer_type(config, i)
    if kind == "linear_attention":
        return _linear(config)
    return _attention(config, kind)


def _layer_type(config: Fields, i: int) -> str:
    """`full_attention`, `sliding_attention`, `chunked_attention` or `linear_attention`."""
    listed, pattern = config.get("layer_types"), config.get("hybrid_layer_pattern")
    if isinstance(listed, list) and i < len(listed):
        return str(listed[i])
    if isinstance(pattern, list) and i < len(pattern):
        return "sliding_attention" if pattern[i] else "full_attention"
    if config.get("attention_chunk_size") and pattern is None:
        # Llama 4: layers without rotation, every fourth, see everything.
        rotated = config.get("no_rope_layers")
        if isinstance(rotated, list) and i < len(rotated):
            return "chunked_attention" if rotated[i] else "full_attention"
        step = config.integer("no_rope_layer_interval", 1, 1 << 12, default=4)
        return "full_attention" if (i + 1) % step == 0 else "chunked_attention"
    if config.get("linear_num_value_heads"):
        step = config.integer("full_attention_interval", 1, 1 << 12, default=4)
        return "full_attention" if (i + 1) % step == 0 else "linear_attention"
    windowed = config.get("sliding_window") and config.flag("use_sliding_window", default=True)
    every = config.get("sliding_window_pattern")
    if isinstance(every, int) and every:
        windowed = windowed and (i + 1) % every != 0
    return "sliding_attention" if windowed else "full_attention"


def _attention(config: Fields, kind: str) -> Attention:
    own = "swa_" if kind == "sliding_attention" and config.get("swa_head_dim") else ""
    heads = config.integer(f"{own}num_attention_heads", 1, MOST)
    hidden = config.integer("hidden_size", 1, MOST)
    default = max(hidden // heads, 1)
    size = config.integer(f"{own}head_dim", 1, MOST, default=default)
    value = config.integer(f"{own}v_head_dim", 1, MOST, default=size)
    window = kind == "sliding_attention" and config.integer("sliding_window", 1, LARGEST)
    chunk = kind == "chunked_attention" and config.integer("attention_chunk_size", 1, LARGEST)
    return Attention(
        heads=heads,
        kv_heads=config.integer(f"{own}num_key_value_heads", 1, heads, default=heads),
        head_dim=size,
        value_dim=None if value == size else value,
        window=window or None,
        chunk=chunk or None,
        qkv_bias=_has_bias(config),
        qk_norm=NORM if _normed(config) else None,
        gate=config.flag("attn_output_gate", default=False),
    )


def _has_bias(config: Fields) -> bool:
    """Qwen2 has biases without a key for them."""
    named = config.get("attention_bias")
    return named is True or (named is None and config.get("model_type") in ("qwen2", "qwen2_moe"))


def _normed(config: Fields) -> bool:
    kind = str(config.get("model_type") or "")
    return config.get("use_qk_norm") is True or kind.startswith(("qwen3", "gemma3"))


def _latent(config: Fields) -> LatentAttention:
    rank, plain, rope, value = (config.integer(key, 1, MOST) for key in _LATENT)
    query = config.get("q_lora_rank")
    return LatentAttention(
        heads=config.integer("num_attention_heads", 1, MOST),
        kv_rank=rank,
        plain_dim=plain,
        rope_dim=rope,
        value_dim=value,
        norm=NORM,
        query_rank=None if query is None else config.integer("q_lora_rank", 1, MOST),
    )


def _linear(config: Fields) -> LinearAttention:
    return LinearAttention(
        key_heads=config.integer("linear_num_key_heads", 1, MOST),
        value_heads=config.integer("linear_num_value_heads", 1, MOST),
        key_dim=config.integer("linear_key_head_dim", 1, MOST),
        value_dim=config.integer("linear_value_head_dim", 1, MOST),
        scalars=2,
        kernel=config.integer("linear_conv_kernel_dim", 1, MOST, default=4),
    )


def _feed_forward(config: Fields, i: int) -> FeedForward:
    count = _first(config, _EXPERTS)
    if not count or not _is_sparse(config, i):
        # Llama 4 has the width of its dense layers under a key of its own.
        key = "intermediate_size_mlp" if config.get("intermediate_size_mlp") else _dense_key(config)
        return Mlp("gated", config.integer(key, 1, MOST), "silu")
    own = "moe_intermediate_size"
    width = config.integer(own if config.get(own) else "intermediate_size", 1, MOST)
    each = "num_experts_per_tok" if config.get("num_experts_per_tok") else "experts_per_token"
    shared = _shared(config, width)
    return Experts(
        experts=count,
        experts_per_token=config.integer(each, 1, count),
        expert=Mlp("gated", width, "silu", bias=config.get("model_type") == "gpt_oss"),
        router=Router("softmax", correction=config.get("scoring_func") == "sigmoid"),
        shared=shared,
        shared_gate=shared is not None
        and config.get("shared_expert_intermediate_size") is not None,
    )


def _dense_key(config: Fields) -> str:
    return (
        "dense_intermediate_size" if config.get("dense_intermediate_size") else "intermediate_size"
    )


def _shared(config: Fields, width: int) -> Mlp | None:
    """The experts that every token reads, as one."""
    if config.get("model_type") in ("llama4", "llama4_text"):
        return Mlp("gated", width, "silu")
    named = config.get("shared_expert_intermediate_size")
    if named:
        return Mlp("gated", config.integer("shared_expert_intermediate_size", 1, MOST), "silu")
    count = config.get("n_shared_experts")
    if not count:
        return None
    return Mlp("gated", config.integer("n_shared_experts", 1, MOST) * width, "silu")


def _is_sparse(config: Fields, i: int) -> bool:
    """Whether a layer has experts."""
    listed, plain = config.get("moe_layer_freq"), config.get("mlp_only_layers")
    named = config.get("moe_layers")
    if isinstance(named, list):
        return i in named
    if isinstance(listed, list):
        return bool(listed[i]) if i < len(listed) else True
    if isinstance(plain, list) and i in plain:
        return False
    key = "interleave_moe_layer_step"
    step = config.integer(
        key if config.get(key) is not None else "decoder_sparse_step", 0, 1 << 12, 1
    )
    first = config.integer("first_k_dense_replace", 0, 1 << 12, default=0)
    return step > 0 and i >= first and (i + 1) % step == 0


def _first(config: Fields, keys: tuple[str, ...]) -> int:
    for key in keys:
        if config.get(key):
            return config.integer(key, 1, 1 << 16)
    return 0
