"""Derives the sizes of a decoder from `config.json` alone, for planning only.

The model families in `penstock.model` reject what the decoder cannot compute. Only sizes matter
here, so models that no backend runs yet can be planned, too. A key is interpreted by its meaning;
the model type matters only where no key tells. Keys that would lead to wrong sizes are rejected by
name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.spec import (
    Attention,
    CachedAttention,
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
from penstock_ops.plan.keys import refuse_unread

MOST = 1 << 26
LARGEST = 1 << 40
NORM = Norm("rms", 1e-6)
NORMS = Norms(before=NORM)
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_POSITIONS = ("max_position_embeddings", "max_seq_len")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_CHOSEN = (
    "num_experts_per_tok",
    "experts_per_token",
    "num_experts_per_token",
    "moe_k",
    "moe_top_k",
    "moe_topk",
    "top_k_experts",
)
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
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
"""Keys of model shapes that cannot be sized yet, with the meaning of each for the error message."""
_MIXERS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
_NAMES = dict.fromkeys(("indexed_attention", "deepseek_sparse_attention"), "full_attention")
"""Synonyms of layer types. With these, an index selects from all tokens, so KV is as for full
attention. A note to the user mentions the index.
"""
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
_PLAIN = {
    "apertus",
    "apertus1p5_text",
    "arcee",
    "fuyu",
    "gpt_neox",
    "jais2",
    "nanochat",
    "nemotron",
    "persimmon",
    "phi",
    "starcoder2",
}
"""Model types whose feed-forward layers have no gate, which no key states."""
_GATED = {"bitnet", "gemma", "gemma2", "gemma3", "gemma3_text", "modernbert-decoder", "vaultgemma"}
"""Model types whose feed-forward layers have a gate, although their activation is not SiLU."""
_GATING = ("afmoe", "beam", "qwen3_next", "qwen3_5")
"""Beginnings of model types whose attention has an output gate, unless a key states otherwise."""
_TIED = {
    "cohere",
    "cohere2",
    "cohere2_moe",
    "ernie4_5",
    "ernie4_5_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "granite_swa",
    "lara_mini",
    "minicpm3",
    "modernbert-decoder",
    "smollm3",
    "starcoder2",
    "vaultgemma",
    "youtu",
    "zaya",
}
"""Model types that use the embedding matrix as the output head, too, unless a key states
otherwise.
"""
_EVERY = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2}
"""For each model type: one in this many layers has full attention and the others a window, unless a
key states otherwise.
"""
_WINDOWED = {"ministral", "mistral", "mixtral", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3"}
_WINDOWED |= {"qwen3_moe", "starcoder2", "mimo", "llava_mistral"}
"""Model types in which the key `sliding_window` applies to all layers."""


def text_part(values: Mapping[str, object]) -> Mapping[str, object]:
    """The keys of the language model, which are nested in the configuration of a model for
    images.
    """
    for key in ("text_config", "llm_config", "language_config"):
        nested = values.get(key)
        if isinstance(nested, dict):
            outer = {k: values[k] for k in ("tie_word_embeddings",) if k in values}
            return {**outer, **nested}
    return values


def read_shape(config: Fields) -> DecoderSpec:
    """The sizes as a DecoderSpec, whose norms, rotations and routers are placeholders. ModelError
    names a key that is missing, or that requests a shape that cannot be sized.
    """
    for key, what in _UNSIZED.items():
        if config.get(key):
            raise ModelError(config.file, f"{key}: {what} cannot be sized yet")
    refuse_unread(config)
    count = config.integer("num_hidden_layers", 1, 1 << 12)
    mixers = [_mixer(config, i) for i in range(count)]
    if not any(isinstance(mixer, CachedAttention) for mixer in mixers):
        raise ModelError(config.file, "a model without attention layers cannot be sized yet")
    tied = _kind(config) in _TIED
    return DecoderSpec(
        family="",
        hidden=config.integer("hidden_size", 1, MOST),
        vocab=config.integer("vocab_size", 1, MOST),
        max_position=config.integer(_given(config, _POSITIONS), 1, LARGEST),
        final_norm=NORM,
        layers=tuple(
            Layer(NORMS, mixer, NORMS, _feed_forward(config, i)) for i, mixer in enumerate(mixers)
        ),
        tied_embeddings=config.flag("tie_word_embeddings", default=tied),
    )


def _kind(config: Fields) -> str:
    return str(config.get("model_type") or "")


def _given(config: Fields, keys: tuple[str, ...]) -> str:
    """The first of `keys` that has a value in the configuration, else the first of all."""
    return next((key for key in keys if config.get(key)), keys[0])


def _mixer(config: Fields, i: int) -> Mixer:
    kind, listed = _layer_type(config, i), config.get("attn_type_list")
    if isinstance(listed, list) and any(item != 1 for item in listed):
        raise config.refuse("attn_type_list", "a list of 1, attention that sees everything")
    if config.get("kv_lora_rank") is not None:
        if kind != "full_attention":
            raise ModelError(config.file, f"layer_types: latent attention with {kind}")
        return _latent(config)
    if kind == "linear_attention":
        return _linear(config)
    return _attention(config, kind)


def _layer_type(config: Fields, i: int) -> str:
    """The type of layer `i`: `full_attention`, `sliding_attention`, `chunked_attention` or
    `linear_attention`.
    """
    listed, pattern = config.get("layer_types"), config.get("hybrid_layer_pattern")
    if isinstance(listed, list) and i < len(listed):
        word = _NAMES.get(str(listed[i]), str(listed[i]))
        if word not in _MIXERS:
            raise ModelError(config.file, f"layer_types: {word!r} is none of {', '.join(_MIXERS)}")
        return word
    if isinstance(pattern, list) and i < len(pattern):
        return "sliding_attention" if pattern[i] else "full_attention"
    if config.get("attention_chunk_size") and pattern is None:
        # Llama 4: layers without rotary positions have full attention, by default every fourth
        # layer.
        rotated = config.get("no_rope_layers")
        if isinstance(rotated, list) and i < len(rotated):
            return "chunked_attention" if rotated[i] else "full_attention"
        step = config.integer("no_rope_layer_interval", 1, 1 << 12, default=4)
        return "full_attention" if (i + 1) % step == 0 else "chunked_attention"
    if config.get("linear_num_value_heads"):
        step = config.integer("full_attention_interval", 1, 1 << 12, default=4)
        return "full_attention" if (i + 1) % step == 0 else "linear_attention"
    return "sliding_attention" if _is_windowed(config, i) else "full_attention"


def _is_windowed(config: Fields, i: int) -> bool:
    """Whether layer `i` has the sliding window, if no key lists the layers that have it."""
    kind = _kind(config)
    if not config.get("sliding_window") or not config.flag(
        "use_sliding_window", default=not kind.startswith("qwen")
    ):
        return False
    every = config.get("sliding_window_pattern") or _EVERY.get(kind)
    if isinstance(every, str) and set(every) <= {"L", "G"}:
        return every[i % len(every)] == "L"
    if every is not None:
        if not isinstance(every, int):
            raise config.refuse("sliding_window_pattern", "a number of layers, or letters L and G")
        return (i + 1) % every != 0
    if kind.startswith("qwen") and config.get("max_window_layers") is not None:
        return i >= config.integer("max_window_layers", 0, 1 << 12)
    if kind not in _WINDOWED and config.get("use_sliding_window") is not True:
        raise ModelError(
            config.file,
            f"sliding_window = {config.get('sliding_window')}: no key says which layers of model "
            f"type {kind!r} have it",
        )
    return True


def _attention(config: Fields, kind: str) -> Attention:
    sliding = kind == "sliding_attention"
    own = "swa_" if sliding and config.get("swa_head_dim") else ""
    if sliding and (other := config.within("attention_other_setting")) is not None:
        names = ("num_attention_heads", "num_attention_groups", "head_dim")
        config = config.changed({name: other.integer(name, 1, MOST) for name in names})
    heads = config.integer(f"{own}num_attention_heads", 1, MOST)
    hidden = config.integer("hidden_size", 1, MOST)
    default = max(hidden // heads, 1)
    size = config.integer(f"{own}head_dim", 1, MOST, default=default)
    value = config.integer(f"{own}v_head_dim", 1, MOST, default=size)
    shared = _given(config, (f"{own}num_key_value_heads", "num_attention_groups"))
    window = sliding and config.integer("sliding_window", 1, LARGEST)
    chunk = kind == "chunked_attention" and config.integer("attention_chunk_size", 1, LARGEST)
    return Attention(
        heads=heads,
        kv_heads=config.integer(shared, 1, heads, default=heads),
        head_dim=size,
        value_dim=None if value == size else value,
        window=window or None,
        chunk=chunk or None,
        qkv_bias=_has_bias(config),
        qk_norm=NORM if _normed(config) else None,
        gate=config.flag("attn_output_gate", default=_kind(config).startswith(_GATING)),
    )


def _has_bias(config: Fields) -> bool:
    """Whether attention has biases. Qwen2 has some, but no key for them."""
    named = config.get("attention_bias")
    return named is True or (named is None and _kind(config) in ("qwen2", "qwen2_moe"))


def _normed(config: Fields) -> bool:
    return config.get("use_qk_norm") is True or _kind(config).startswith(("qwen3", "gemma3"))


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
    key = _given(config, _EXPERTS)
    count = config.integer(key, 1, 1 << 16) if config.get(key) else 0
    if count < 2 or not _is_sparse(config, i):
        # Llama 4 and MiniMax have a separate key for the width of feed-forward layers without
        # experts.
        dense = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size")
        found = next((key for key in dense if config.get(key)), dense[-1])
        return _mlp(config, config.integer(found, 1, MOST))
    own = _given(config, ("moe_intermediate_size", "intermediate_size"))
    width = config.integer(own, 1, MOST)
    shared = _shared(config, width)
    return Experts(
        experts=count,
        experts_per_token=config.integer(_given(config, _CHOSEN), 1, count),
        expert=_mlp(config, width, bias=_kind(config) == "gpt_oss"),
        router=Router("softmax", correction=config.get("scoring_func") == "sigmoid"),
        shared=shared,
        shared_gate=shared is not None
        and config.get("shared_expert_intermediate_size") is not None,
    )


def _mlp(config: Fields, width: int, bias: bool = False) -> Mlp:
    return Mlp("plain" if _is_plain(config) else "gated", width, "silu", bias=bias)


def _is_plain(config: Fields) -> bool:
    """Whether a feed-forward layer has no gate: two matrices instead of three."""
    kind, key = _kind(config), _given(config, _ACTIVATIONS)
    if kind in _PLAIN:
        return config.get("mlp_type") != "gated"
    if config.get("mlp_type"):
        raise ModelError(config.file, f"mlp_type: not known of model type {kind!r}")
    named = str(config.get(key) or "silu")
    if named in ("silu", "swish") or "glu" in named or kind in _GATED:
        return False
    raise ModelError(
        config.file,
        f"{key} = {named}: whether feed-forwards of model type {kind!r} have a gate is not known",
    )


def _shared(config: Fields, width: int) -> Mlp | None:
    """The experts that every token uses, combined into one feed-forward layer; None without any."""
    if _kind(config) in ("llama4", "llama4_text"):
        return _mlp(config, width)
    named = _given(config, _SHARED_WIDTHS)
    if config.get(named):
        return _mlp(config, config.integer(named, 1, MOST))
    count = _given(config, _SHARED_COUNTS)
    return _mlp(config, config.integer(count, 1, MOST) * width) if config.get(count) else None


def _is_sparse(config: Fields, i: int) -> bool:
    """Whether layer `i` has experts."""
    found = _listed_sparse(config, i)
    if found is not None:
        return found
    plain = config.get("mlp_only_layers")
    if isinstance(plain, list) and i in plain:
        return False
    # Ernie: layers after this index have no experts.
    last = config.integer("moe_layer_end_index", -1, 1 << 12, default=-1)
    if 0 <= last < i:
        return False
    steps = ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval")
    key = next((key for key in steps if config.get(key) is not None), steps[0])
    step = config.integer(key, 0, 1 << 12, default=1)
    starts = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    first = config.integer(_given(config, starts), 0, 1 << 12, default=0)
    each = config.get("moe_layer_freq")
    if isinstance(each, int) and each and i % each:
        return False
    return step > 0 and i >= first and (i + 1) % step == 0


def _listed_sparse(config: Fields, i: int) -> bool | None:
    """As `_is_sparse`, from a key that lists the layers; None without such a key."""
    words = config.get("mlp_layer_types")
    if isinstance(words, list) and i < len(words):
        if words[i] not in ("dense", "sparse"):
            raise ModelError(config.file, f"mlp_layer_types: {words[i]!r} is not dense or sparse")
        return bool(words[i] == "sparse")
    numbers = config.get("moe_layers_enum")
    if isinstance(numbers, str) and numbers:
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*", numbers):
            raise config.refuse("moe_layers_enum", "numbers of layers, with commas between")
        return i in {int(number) for number in numbers.split(",")}
    named = config.get("moe_layers")
    if isinstance(named, list):
        return i in named
    listed = config.get("moe_layer_freq")
    if isinstance(listed, list):
        return bool(listed[i]) if i < len(listed) else True
    return None
