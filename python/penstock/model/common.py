"""Code shared by model families: reads shapes, rope and sliding windows from config.json and from
GGUF keys.
"""

from collections.abc import Callable
from dataclasses import replace

from penstock.model import rope
from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.quantization import refusal, settings
from penstock.model.recipes import GGUF_ROPE_FACTORS
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    FeedForward,
    LatentAttention,
    Layer,
    Mlp,
    Norm,
    Norms,
    Rope,
)

Windows = tuple[int | None, ...] | None
"""Attention window of each layer; None if no layer has a window."""

MOST_LAYERS = 1024
MOST_HEADS = 1024
WIDEST = 1 << 18
"""Maximum accepted hidden and intermediate size, twice the largest published one."""
LARGEST_VOCAB = 1 << 22
LONGEST_CONTEXT = 1 << 26
ACTIVATIONS = ("silu", "swish")
SLIDING = "sliding_attention"
FULL = "full_attention"
LAYER_TYPES = (SLIDING, FULL)
UNROTATED_PERIOD = 4
"""In families without rope in some layers, these are every 4th unless the config says
otherwise.
"""
BLOCK = [128, 128]
"""Rows and columns of the block that shares a scale in checkpoints with FP8 weights."""
MOE_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


def hf_spec(
    config: Fields,
    family: str,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: Windows = None,
    default_head_dim: int | None = None,
    feed_forwards: tuple[FeedForward, ...] | None = None,
    quantised: bool = False,
    part_rope: bool = False,
    latent: LatentAttention | None = None,
) -> DecoderSpec:
    """The spec of a config.json with Llama's keys. `default_head_dim`: size of a head if the config
    does not state it; None means hidden size / heads. `feed_forwards` None means dense layers of
    `intermediate_size`. `part_rope` allows rope over part of a head. `latent` replaces
    grouped-query attention.
    """
    _refuse_foreign_features(config, quantised=quantised)
    layers = hf_layers(config)
    if feed_forwards is None:
        _refuse_experts(config)
        feed_forwards = (dense(config, bias=mlp_bias),) * layers
    hidden = config.integer("hidden_size", 1, WIDEST)
    norm = Norm("rms", config.number("rms_norm_eps", 1e-12, 0.1))
    mixer = latent or _hf_attention(
        config, hidden, default_head_dim, qkv_bias, out_bias, norm if qk_norm else None, part_rope
    )
    return DecoderSpec(
        family=family,
        hidden=hidden,
        vocab=config.integer("vocab_size", 1, LARGEST_VOCAB),
        max_position=rope.stretched(
            mixer.rope, config.integer("max_position_embeddings", 1, LONGEST_CONTEXT)
        ),
        final_norm=norm,
        layers=_layers(mixer, feed_forwards, norm, windows or (None,) * layers),
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
    )


def _hf_attention(
    config: Fields,
    hidden: int,
    default_head_dim: int | None,
    qkv_bias: bool,
    out_bias: bool,
    qk_norm: Norm | None,
    part_rope: bool,
) -> Attention:
    heads = config.integer("num_attention_heads", 1, MOST_HEADS)
    default_head_dim = default_head_dim or max(hidden // heads, 2)
    head_dim = config.integer("head_dim", 2, WIDEST, default=default_head_dim)
    attention = Attention(
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", 1, heads, default=heads),
        head_dim=head_dim,
        rope=rope.from_hf(config, head_dim=head_dim if part_rope else None),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=qk_norm,
    )
    check_heads(config, attention, "num_key_value_heads", "head_dim")
    return attention


def dense(config: Fields, *, bias: bool = False) -> Mlp:
    """The gated feed-forward of a config.json."""
    return Mlp("gated", config.integer("intermediate_size", 1, WIDEST), "silu", bias=bias)


def _layers(
    mixer: Attention | LatentAttention,
    feed_forwards: tuple[FeedForward, ...],
    norm: Norm,
    windows: tuple[int | None, ...],
) -> tuple[Layer, ...]:
    """Layers with a norm before attention and before the feed-forward. `windows` has one entry per
    layer.
    """
    norms = Norms(before=norm)

    def within(window: int | None) -> Attention | LatentAttention:
        return replace(mixer, window=window) if isinstance(mixer, Attention) else mixer

    return tuple(
        Layer(norms, within(window), norms, feed_forward)
        for window, feed_forward in zip(windows, feed_forwards, strict=True)
    )


def with_attention(spec: DecoderSpec, change: Callable[[int, Attention], Attention]) -> DecoderSpec:
    """The spec with the attention of each layer replaced by `change(layer, attention)`."""

    def changed(i: int, layer: Layer) -> Layer:
        assert isinstance(layer.mixer, Attention)
        return replace(layer, mixer=change(i, layer.mixer))

    return replace(spec, layers=tuple(changed(i, layer) for i, layer in enumerate(spec.layers)))


def with_defaults(config: Fields, **values: object) -> Fields:
    """The config with these values for the keys that it lacks."""
    return config.changed({key: value for key, value in values.items() if config.get(key) is None})


def rotating_layers(config: Fields) -> list[bool]:
    """Which layers have rope, in Llama 4 and SmolLM3. Despite its name, `no_rope_layers` is 1 for
    layers with rope. Without it, every `no_rope_layer_interval`-th layer (4th by default) has none.
    """
    layers, listed = hf_layers(config), config.get("no_rope_layers")
    if not listed:
        period = config.integer("no_rope_layer_interval", 1, MOST_LAYERS, default=UNROTATED_PERIOD)
        return unrotated_every(layers, period)
    if (
        not isinstance(listed, list)
        or len(listed) != layers
        or not all(rotates in (0, 1) for rotates in listed)
    ):
        raise config.refuse("no_rope_layers", f"{layers} entries of 0 or 1")
    return [bool(rotates) for rotates in listed]


def unrotated_every(layers: int, period: int) -> list[bool]:
    """Which layers have rope if every `period`-th has none."""
    return [(i + 1) % period != 0 for i in range(layers)]


def typed_windows(config: Fields, window: int, default: list[str]) -> tuple[int | None, ...]:
    """Windows of the layers that `layer_types` (or `default` without it) calls sliding."""
    types, key = default, "layer_types"
    if config.get(key) is not None:
        types = layer_kinds(config, key, hf_layers(config), LAYER_TYPES)
    return tuple(window if kind == SLIDING else None for kind in types)


def layer_kinds(config: Fields, key: str, layers: int, kinds: tuple[str, ...]) -> list[str]:
    """The list at `key`, which has one of `kinds` for each layer."""
    listed = config.get(key)
    if (
        not isinstance(listed, list)
        or len(listed) != layers
        or not all(kind in kinds for kind in listed)
    ):
        raise config.refuse(key, f"{layers} entries, each of {' '.join(kinds)}")
    return listed


def _refuse_foreign_features(config: Fields, *, quantised: bool) -> None:
    if config.get("hidden_act") not in ACTIVATIONS:
        raise config.refuse("hidden_act", " ".join(ACTIVATIONS))
    if not quantised:
        refuse_quantised(config)


def refuse_quantised(config: Fields) -> None:
    """Raise ModelError, which names the quantisation, for a quantised checkpoint."""
    if settings(config, {}) is not None:
        raise refusal(config)


def has_block_scales(config: Fields) -> bool:
    """Whether matrices are FP8 with one scale for each block of 128 x 128. Raises ModelError for
    any other quantisation.
    """
    quantised = settings(config, {})
    if quantised is None:
        return False
    if quantised.get("quant_method") != "fp8":
        raise refusal(config)
    if quantised.get("weight_block_size") != BLOCK:
        raise quantised.refuse("weight_block_size", str(BLOCK))
    return True


def _refuse_experts(config: Fields) -> None:
    for key in MOE_KEYS:
        if config.get(key):
            raise config.refuse(key, "dense models (no experts)")


def check_heads(fields: Fields, attention: Attention, kv_heads_key: str, head_dim_key: str) -> None:
    if attention.heads % attention.kv_heads:
        raise fields.refuse(kv_heads_key, f"a divisor of the {attention.heads} query heads")
    if attention.head_dim % 2:
        raise fields.refuse(head_dim_key, f"even head sizes (here {attention.head_dim})")


def dividing_heads(fields: Fields, key: str, hidden: int) -> int:
    """The number of heads at `key`. Raises ModelError unless it divides the hidden size."""
    heads = fields.integer(key, 1, min(MOST_HEADS, hidden))
    if hidden % heads:
        raise fields.refuse(key, f"a divisor of the hidden size, {hidden}")
    return heads


def hf_layers(config: Fields) -> int:
    return config.integer("num_hidden_layers", 1, MOST_LAYERS)


def uniform_windows(config: Fields) -> Windows:
    """Windows as in Mistral: one `sliding_window` for all layers, or null."""
    if config.get("sliding_window") is None:
        return None
    return (config.integer("sliding_window", 1, LONGEST_CONTEXT),) * hf_layers(config)


def upper_windows(config: Fields) -> Windows:
    """Windows as in Qwen. With `use_sliding_window`, the layers named by `layer_types` have a
    window; without `layer_types`, the layers from `max_window_layers` on.
    """
    if not config.flag("use_sliding_window", default=False):
        return None
    window = config.integer("sliding_window", 1, LONGEST_CONTEXT)
    layers = hf_layers(config)
    types = config.get("layer_types")
    default = []
    if types is None:
        first = config.integer("max_window_layers", 0, MOST_LAYERS)
        default = [SLIDING if layer >= first else FULL for layer in range(layers)]
    windows = typed_windows(config, window, default)
    return windows if any(windows) else None


def gguf_spec(
    header: GgufHeader,
    architecture: str,
    *,
    qk_norm: bool = False,
    feed_forward: FeedForward | None = None,
    part_rope: bool = False,
    latent: LatentAttention | None = None,
) -> DecoderSpec:
    """The spec of a GGUF file whose keys start with `architecture`. Biases and an output head exist
    if the file has their tensors. `feed_forward` None means dense layers. `latent` replaces
    grouped-query attention.
    """
    fields = header.fields(f"{architecture}.")
    if feed_forward is None:
        if fields.get("expert_count"):
            raise fields.refuse("expert_count", "dense models (no experts)")
        feed_forward = Mlp("gated", fields.integer("feed_forward_length", 1, WIDEST), "silu")
    layers = fields.integer("block_count", 1, MOST_LAYERS)
    norm = Norm("rms", fields.number("attention.layer_norm_rms_epsilon", 1e-12, 0.1))
    mixer = latent or _gguf_attention(
        header, fields, norm if qk_norm else None, part_rope=part_rope
    )
    window = None
    if fields.get("attention.sliding_window"):
        window = fields.integer("attention.sliding_window", 1, LONGEST_CONTEXT)
    return DecoderSpec(
        family=architecture,
        hidden=fields.integer("embedding_length", 1, WIDEST),
        vocab=header.embedding_rows(),
        max_position=rope.stretched(
            mixer.rope, fields.integer("context_length", 1, LONGEST_CONTEXT)
        ),
        final_norm=norm,
        layers=_layers(mixer, (feed_forward,) * layers, norm, (window,) * layers),
        tied_embeddings="output.weight" not in header.shapes,
    )


def _gguf_attention(
    header: GgufHeader, fields: Fields, qk_norm: Norm | None, *, part_rope: bool
) -> Attention:
    heads = fields.integer("attention.head_count", 1, MOST_HEADS)
    even_share = max(fields.integer("embedding_length", 1, WIDEST) // heads, 2)
    head_dim = fields.integer("attention.key_length", 2, WIDEST, default=even_share)
    if fields.integer("attention.value_length", 2, WIDEST, default=head_dim) != head_dim:
        raise fields.refuse("attention.value_length", f"the size of the keys, {head_dim}")
    attention = Attention(
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", 1, heads, default=heads),
        head_dim=head_dim,
        rope=_gguf_rope(header, fields, head_dim, part_rope=part_rope),
        qkv_bias="blk.0.attn_q.bias" in header.shapes,
        out_bias="blk.0.attn_output.bias" in header.shapes,
        qk_norm=qk_norm,
    )
    check_heads(fields, attention, "attention.head_count_kv", "attention.key_length")
    return attention


def _gguf_rope(header: GgufHeader, fields: Fields, head_dim: int, *, part_rope: bool) -> Rope:
    factors = header.shapes.get(GGUF_ROPE_FACTORS)
    if factors not in (None, (head_dim // 2,)):
        problem = f"tensor {GGUF_ROPE_FACTORS} has shape {factors}, not ({head_dim // 2},)"
        raise ModelError(header.file, problem)
    dims = fields.integer("rope.dimension_count", 1, WIDEST, default=head_dim)
    if dims != head_dim and not part_rope:
        raise fields.refuse("rope.dimension_count", f"rope over the whole head, {head_dim}")
    if dims > head_dim or dims % 2:
        raise fields.refuse("rope.dimension_count", f"pairs within a head of {head_dim}")
    part = dims if dims != head_dim else None
    return rope.from_gguf(fields, has_factors=factors is not None, dims=part)
