"""LFM2, LFM2.5 and LFM2-MoE: short convolutions between layers of attention, with norms of queries
and keys. The final norm is called a norm of the embedding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    Experts,
    FeedForward,
    Layer,
    Mlp,
    Norm,
    Norms,
    Recipe,
    Router,
    ShortConvolution,
    WeightRecipes,
)

THETA = 1e6
"""Base of the rotation in a config.json without one (transformers 5, models/lfm2)."""
EPSILON = 1e-6
"""Added to the sum of a token's expert weights (transformers 5, models/lfm2_moe)."""
SHORTEST, LONGEST = 2, 16
"""Numbers of tokens that a convolution may cover."""
CONVOLUTION, ATTENTION = "conv", "full_attention"
Mapped = tuple[DecoderSpec, WeightRecipes]


@dataclass(frozen=True, slots=True)
class _Names:
    """Tensor names: of modules within a layer, by role, and of tensors outside the layers."""

    layer: str
    embed: str
    final_norm: str
    head: str
    modules: Mapping[str, str]
    experts: Mapping[str, str]
    correction: str


_HF = _Names(
    layer="model.layers.{}.",
    embed="model.embed_tokens.weight",
    final_norm="model.embedding_norm.weight",
    head="lm_head.weight",
    modules={
        "mixer_norm": "operator_norm",
        "feed_forward_norm": "ffn_norm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.out_proj",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "conv_in": "conv.in_proj",
        "conv": "conv.conv",
        "conv_out": "conv.out_proj",
        "gate": "feed_forward.w1",
        "up": "feed_forward.w3",
        "down": "feed_forward.w2",
    },
    experts={
        "router": "feed_forward.gate",
        "gate": "feed_forward.experts.{e}.w1",
        "up": "feed_forward.experts.{e}.w3",
        "down": "feed_forward.experts.{e}.w2",
    },
    correction="feed_forward.expert_bias",
)
_GGUF = _Names(
    layer="blk.{}.",
    embed="token_embd.weight",
    final_norm="token_embd_norm.weight",
    head="output.weight",
    modules={
        "mixer_norm": "attn_norm",
        "feed_forward_norm": "ffn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "conv_in": "shortconv.in_proj",
        "conv": "shortconv.conv",
        "conv_out": "shortconv.out_proj",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    },
    experts={
        "router": "ffn_gate_inp",
        "gate": "ffn_gate_exps",
        "up": "ffn_up_exps",
        "down": "ffn_down_exps",
    },
    correction="exp_probs_b.bias",
)


def from_hf(config: Fields) -> Mapped:
    layers = common.hf_layers(config)
    listed = config.get("layer_types")
    if listed is None:
        indices = config.get("full_attn_idxs")
        kinds = [ATTENTION] * layers
        if indices is not None:
            own = _indices(config, indices, layers)
            kinds = [ATTENTION if i in own else CONVOLUTION for i in range(layers)]
    else:
        kinds = _layer_types(config, listed, layers)
    return _from_hf(config, "lfm2", kinds, (_dense(config),) * layers)


def from_hf_moe(config: Fields) -> Mapped:
    layers = common.hf_layers(config)
    kinds = _layer_types(config, config.get("layer_types"), layers)
    count = config.integer("num_experts", 1, experts.MOST_EXPERTS)
    normalise = config.flag("norm_topk_prob", default=True)
    scale = config.number("routed_scaling_factor", 0.0, experts.LARGEST_SCALE, default=1.0)
    mixture = Experts(
        experts=count,
        experts_per_token=config.integer("num_experts_per_tok", 1, count),
        expert=_mlp(config.integer("moe_intermediate_size", 1, common.WIDEST)),
        router=_router(config.flag("use_expert_bias", default=True), normalise, scale),
    )
    plain = config.integer("num_dense_layers", 0, layers, default=2)
    dense = common.dense(config)
    forms = (dense,) * plain + (mixture,) * (layers - plain)
    return _from_hf(config, "lfm2moe", kinds, forms)


def _from_hf(
    config: Fields, family: str, kinds: list[str], forms: tuple[FeedForward, ...]
) -> Mapped:
    if ATTENTION not in kinds:
        raise config.refuse("layer_types", f"at least one layer of {ATTENTION}")
    kv_key = "num_key_value_heads"
    kv_heads = config.integer(kv_key, 1, common.MOST_HEADS)
    tied = "tie_word_embeddings" if config.get("tie_embedding") is None else "tie_embedding"
    llama = config.changed(
        {
            "hidden_act": "silu",
            "rms_norm_eps": config.number("norm_eps", 1e-12, 0.1, default=1e-5),
            "tie_word_embeddings": config.flag(tied, default=True),
        }
    )
    llama = common.with_defaults(llama, rope_theta=THETA)
    spec = common.hf_spec(llama, family, qk_norm=True, feed_forwards=forms)
    bias = config.flag("conv_bias", default=False)
    convolution = _convolution(config, "conv_L_cache", (kv_key, kv_heads), spec.hidden, bias)
    mixers = [spec.attention if kind == ATTENTION else convolution for kind in kinds]
    spec = replace(spec, layers=_layers(mixers, forms, spec.final_norm))
    return spec, _recipes(spec, _HF)


def from_gguf(header: GgufHeader) -> Mapped:
    fields = header.fields("lfm2.")
    dense = _mlp(fields.integer("feed_forward_length", 1, common.WIDEST))
    return _from_gguf(header, "lfm2", lambda layers: (dense,) * layers)


def from_gguf_moe(header: GgufHeader) -> Mapped:
    """Spec and recipes of a GGUF file. The converter writes no keys for the normalisation and scale
    of expert weights, which are those of the published models.
    """
    fields = header.fields("lfm2moe.")
    if fields.integer("expert_gating_func", 0, 255) != experts.SIGMOID:
        raise fields.refuse("expert_gating_func", f"{experts.SIGMOID}, sigmoids")
    normalise = fields.flag("expert_weights_norm", default=True)
    scale = fields.number("expert_weights_scale", 0.0, experts.LARGEST_SCALE, default=1.0) or 1.0
    mixture = experts.gguf(header, "lfm2moe", normalise=normalise)
    mixture = replace(mixture, router=_router(True, normalise, scale))
    dense = _mlp(fields.integer("feed_forward_length", 1, common.WIDEST))

    def forms(layers: int) -> tuple[FeedForward, ...]:
        plain = fields.integer("leading_dense_block_count", 0, layers, default=0)
        return (dense,) * plain + (mixture,) * (layers - plain)

    return _from_gguf(header, "lfm2moe", forms)


def _from_gguf(
    header: GgufHeader, architecture: str, forms: Callable[[int], tuple[FeedForward, ...]]
) -> Mapped:
    fields = header.fields(f"{architecture}.")
    if fields.get("attention.sliding_window"):
        raise fields.refuse("attention.sliding_window", "attention to all tokens")
    layers = fields.integer("block_count", 1, common.MOST_LAYERS)
    kv_key = "attention.head_count_kv"
    counts = fields.get(kv_key)
    wanted = f"{layers} numbers, 0 for each layer without attention"
    if not isinstance(counts, list) or not all(isinstance(count, int) for count in counts):
        raise fields.refuse(kv_key, wanted)
    kv_heads = max(counts, default=0)
    if len(counts) != layers or kv_heads < 1:
        raise fields.refuse(kv_key, wanted)
    if any(count not in (0, kv_heads) for count in counts):
        raise fields.refuse(kv_key, "the same number in all layers with attention")
    # `gguf_spec` takes one count for all layers.
    same = replace(header, metadata={**header.metadata, f"{architecture}.{kv_key}": kv_heads})
    own = forms(layers)
    spec = common.gguf_spec(same, architecture, qk_norm=True, feed_forward=own[0])
    convolution = _convolution(fields, "shortconv.l_cache", (kv_key, kv_heads), spec.hidden)
    mixers = [spec.attention if count else convolution for count in counts]
    spec = replace(spec, layers=_layers(mixers, own, spec.final_norm))
    return spec, _recipes(spec, _GGUF)


def _layer_types(config: Fields, listed: object, layers: int) -> list[str]:
    known = (CONVOLUTION, ATTENTION)
    if not isinstance(listed, list) or len(listed) != layers or any(x not in known for x in listed):
        raise config.refuse("layer_types", f"{layers} entries, each of {' '.join(known)}")
    return listed


def _indices(config: Fields, listed: object, layers: int) -> set[int]:
    if not isinstance(listed, list) or any(i not in range(layers) for i in listed):
        raise config.refuse("full_attn_idxs", f"a list of layers, each under {layers}")
    return set(listed)


def _dense(config: Fields) -> Mlp:
    """The feed-forward of a dense model, whose width is computed from the stated one unless
    `block_auto_adjust_ff_dim` is false.
    """
    key = "intermediate_size" if config.get("block_ff_dim") is None else "block_ff_dim"
    width = config.integer(key, 1, common.WIDEST)
    if config.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        if not config.is_null("block_ffn_dim_multiplier"):
            unit = config.integer("block_multiple_of", 1, common.WIDEST, default=256)
            factor = config.number("block_ffn_dim_multiplier", 1e-3, 1e3, default=1.0)
            width = -(-int(factor * width) // unit) * unit
    if not 1 <= width <= common.WIDEST:
        raise config.refuse(key, f"a width from 1 to {common.WIDEST} (here {width})")
    return _mlp(width)


def _mlp(width: int) -> Mlp:
    return Mlp("gated", width, "silu")


def _router(corrected: bool, normalise: bool, scale: float) -> Router:
    return Router(
        "sigmoid",
        correction=corrected,
        normalise=normalise,
        epsilon=EPSILON if normalise else None,
        scale=None if scale == 1.0 else scale,
    )


def _convolution(
    fields: Fields, key: str, kv_heads: tuple[str, int], hidden: int, bias: bool = False
) -> ShortConvolution:
    """The convolution, with as many parts for ranks as attention has KV heads. `key`: that of the
    number of tokens that it covers. `kv_heads`: key and value.
    """
    if hidden % kv_heads[1]:
        raise fields.refuse(kv_heads[0], f"a divisor of the {hidden} channels of convolutions")
    kernel = fields.integer(key, SHORTEST, LONGEST)
    return ShortConvolution(hidden, kernel, kv_heads[1], bias)


def _layers(
    mixers: list[Attention | ShortConvolution], forms: tuple[FeedForward, ...], norm: Norm
) -> tuple[Layer, ...]:
    norms = Norms(before=norm)
    pairs = zip(mixers, forms, strict=True)
    return tuple(Layer(norms, mixer, norms, form) for mixer, form in pairs)


def _recipes(spec: DecoderSpec, names: _Names) -> WeightRecipes:
    return WeightRecipes(
        embed=Recipe(names.embed),
        final_norm=Recipe(names.final_norm),
        head=None if spec.tied_embeddings else Recipe(names.head),
        layers=tuple(
            _layer_recipes(layer, names.layer.format(i), names)
            for i, layer in enumerate(spec.layers)
        ),
    )


def _layer_recipes(layer: Layer, at: str, names: _Names) -> dict[str, Recipe]:
    form, modules = layer.feed_forward, names.modules
    recipes = {role: Recipe(f"{at}{modules[role]}.weight") for role in _mixer_roles(layer)}
    if isinstance(layer.mixer, ShortConvolution):
        recipes |= _convolution_recipes(layer.mixer, at, modules)
    if isinstance(form, Mlp):
        return recipes | {
            role: Recipe(f"{at}{modules[role]}.weight") for role in ("gate", "up", "down")
        }
    recipes |= {role: Recipe(f"{at}{name}.weight") for role, name in names.experts.items()}
    if form.router.correction:
        recipes["router_correction"] = Recipe(f"{at}{names.correction}")
    return recipes


def _mixer_roles(layer: Layer) -> tuple[str, ...]:
    norms = ("mixer_norm", "feed_forward_norm")
    if isinstance(layer.mixer, ShortConvolution):
        return (*norms, "conv", "conv_out")
    return (*norms, "q", "k", "v", "o", "q_norm", "k_norm")


def _convolution_recipes(
    mixer: ShortConvolution, at: str, modules: Mapping[str, str]
) -> dict[str, Recipe]:
    """The three projections, which are stored as one matrix, and the biases."""
    n = mixer.channels
    parts = {"conv_b": (0, n), "conv_c": (n, 2 * n), "conv_x": (2 * n, 3 * n)}
    whole = f"{at}{modules['conv_in']}"
    recipes = {role: Recipe(f"{whole}.weight", rows=rows) for role, rows in parts.items()}
    if not mixer.bias:
        return recipes
    biases = {f"{role}_bias": Recipe(f"{whole}.bias", rows=rows) for role, rows in parts.items()}
    others = {f"{role}_bias": Recipe(f"{at}{modules[role]}.bias") for role in ("conv", "conv_out")}
    return recipes | biases | others
