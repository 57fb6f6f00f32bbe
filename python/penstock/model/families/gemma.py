"""Gemma 2 and 3: scaled embeddings, norms before and after each sublayer, GEGLU, alternating
windowed and full layers. Gemma 2 has soft caps; Gemma 3 has norms of queries and keys, and two
ropes.
"""

import struct
from dataclasses import dataclass, replace

from penstock.model import common, rope
from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.files import tensor_names
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    Layer,
    Mlp,
    Norm,
    Norms,
    Recipe,
    Rope,
    WeightRecipes,
)

ACTIVATION = "gelu_pytorch_tanh"
LARGEST_CAP = 1e6
SLIDING, FULL = common.LAYER_TYPES
LOCAL_THETA = 10_000.0
PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Prefixes of tensor names: of text-only models, of published models that also take images, and of
newer such models.
"""


@dataclass(frozen=True, slots=True)
class Version:
    """Properties of a version (Gemma 2 or 3) that are not in its metadata."""

    name: str
    period: int
    """Every `period`-th layer has full attention."""
    two_ropes: bool
    qk_norm: bool
    window: int
    vocab: int
    layers_27b: int
    """Number of layers of the 27B model, the only one whose attention scores are not scaled by its
    head size.
    """


TWO = Version("gemma2", 2, False, False, 4096, 256_000, 46)
THREE = Version("gemma3", 6, True, True, 4096, 262_208, 62)


def from_hf_2(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    return _from_hf(TWO, config, config)


def from_hf_3(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    return _from_hf(THREE, config, config)


def from_hf_3_text(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    """The text part of a model that also takes images. Images are not supported."""
    text = config.within("text_config")
    if text is None:
        raise config.refuse("text_config", "an object")
    return _from_hf(THREE, config, text)


def _from_hf(version: Version, outer: Fields, config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    activation = config.get("hidden_activation") or config.get("hidden_act") or ACTIVATION
    if activation != ACTIVATION:
        raise config.refuse("hidden_activation", ACTIVATION)
    for key in ("attention_bias", "use_bidirectional_attention"):
        if config.get(key):
            raise config.refuse(key, "false")
    common.refuse_quantised(outer)
    hidden = config.integer("hidden_size", 1, common.WIDEST, default=2304)
    norm = Norm("rms", config.number("rms_norm_eps", 1e-12, 0.1, default=1e-6), unit_offset=True)
    heads = config.integer("num_attention_heads", 1, common.MOST_HEADS, default=8)
    attention = Attention(
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", 1, heads, default=min(4, heads)),
        head_dim=config.integer("head_dim", 2, common.WIDEST, default=256),
        qk_norm=norm if version.qk_norm else None,
        scale=config.number("query_pre_attn_scalar", 1e-3, 1e9, default=256) ** -0.5,
        softcap=_cap(config, "attn_logit_softcapping"),
    )
    common.check_heads(config, attention, "num_key_value_heads", "head_dim")
    layers = _hf_layer_types(version, config)
    window = config.integer("sliding_window", 1, common.LONGEST_CONTEXT, default=version.window)
    full, local = _hf_ropes(version, config)
    spec = _spec(
        version,
        attention,
        [(window, local) if kind == SLIDING else (None, full) for kind in layers],
        norm=norm,
        hidden=hidden,
        intermediate=config.integer("intermediate_size", 1, common.WIDEST, default=9216),
        vocab=config.integer("vocab_size", 1, common.LARGEST_VOCAB, default=version.vocab),
        max_position=config.integer(
            "max_position_embeddings", 1, common.LONGEST_CONTEXT, default=131_072
        ),
        tied=_tied(outer, config),
        embed_scale=_as_stored(hidden**0.5, _dtype(outer, config)),
        final_softcap=_cap(config, "final_logit_softcapping"),
    )
    names = tensor_names(outer.file.parent) if outer is not config else set()
    prefix = next((p for p in PREFIXES if f"{p}embed_tokens.weight" in names), PREFIXES[0])
    return spec, _hf_recipes(spec, prefix)


def _tied(outer: Fields, config: Fields) -> bool:
    fields = outer if outer.get("tie_word_embeddings") is not None else config
    return fields.flag("tie_word_embeddings", default=True)


def _cap(config: Fields, key: str) -> float | None:
    return None if config.get(key) is None else config.number(key, 1e-3, LARGEST_CAP)


def _dtype(outer: Fields, config: Fields) -> object:
    found = (fields.get(key) for fields in (config, outer) for key in ("dtype", "torch_dtype"))
    return next((dtype for dtype in found if dtype is not None), None)


def _as_stored(number: float, dtype: object) -> float:
    """The factor `number`, rounded to the type of the embeddings, because the reference
    implementation multiplies in that type.
    """
    if dtype == "float16":
        return float(struct.unpack("<e", struct.pack("<e", number))[0])
    bits = int(struct.unpack("<I", struct.pack("<f", number))[0])
    if dtype == "bfloat16":
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _hf_layer_types(version: Version, config: Fields) -> list[str]:
    layers = config.integer("num_hidden_layers", 1, common.MOST_LAYERS, default=26)
    key = "layer_types"
    if config.get(key) is None:
        period = config.integer(
            "sliding_window_pattern", 1, common.MOST_LAYERS, default=version.period
        )
        return _periodic(layers, period)
    return common.layer_kinds(config, key, layers, common.LAYER_TYPES)


def _periodic(layers: int, period: int) -> list[str]:
    return [SLIDING if (i + 1) % period else FULL for i in range(layers)]


def _hf_ropes(version: Version, config: Fields) -> tuple[Rope, Rope]:
    """Ropes of the layers with full attention and of those with a window."""
    full = rope.from_hf(config, layer_type=FULL)
    if not version.two_ropes:
        return full, full
    if config.get("rope_parameters") is not None:
        return full, rope.from_hf(config, layer_type=SLIDING)
    if config.get("rope_theta") is None:
        full = replace(full, theta=1e6)
    local = config.number("rope_local_base_freq", 1.0, rope.LARGEST_THETA, default=LOCAL_THETA)
    return full, Rope(local)


def _spec(
    version: Version,
    attention: Attention,
    layers: list[tuple[int | None, Rope]],
    *,
    norm: Norm,
    hidden: int,
    intermediate: int,
    vocab: int,
    max_position: int,
    tied: bool,
    embed_scale: float,
    final_softcap: float | None,
) -> DecoderSpec:
    """The spec of a Gemma model. `layers` has the window and the rope of each layer."""
    norms, mlp = Norms(norm, norm), Mlp("gated", intermediate, "gelu_tanh")
    return DecoderSpec(
        family=version.name,
        hidden=hidden,
        vocab=vocab,
        max_position=max_position,
        final_norm=norm,
        layers=tuple(
            Layer(norms, replace(attention, window=window, rope=rope), norms, mlp)
            for window, rope in layers
        ),
        tied_embeddings=tied,
        embed_scale=embed_scale,
        final_softcap=final_softcap,
    )


def _hf_recipes(spec: DecoderSpec, prefix: str) -> WeightRecipes:
    return _with_norms(
        hf_recipes(spec),
        f"{prefix}layers.{{}}.",
        {
            "mixer_norm_after": "post_attention_layernorm",
            "feed_forward_norm": "pre_feedforward_layernorm",
            "feed_forward_norm_after": "post_feedforward_layernorm",
        },
        (PREFIXES[0], prefix),
    )


def _with_norms(
    weights: WeightRecipes, layer_prefix: str, norms: dict[str, str], renamed: tuple[str, str]
) -> WeightRecipes:
    """The recipes, extended by `norms` in each layer. Tensor names with the first prefix of
    `renamed` get the second.
    """
    before, after = renamed

    def moved(recipe: Recipe) -> Recipe:
        rest = recipe.tensor.removeprefix(before)
        return recipe if rest == recipe.tensor else replace(recipe, tensor=after + rest)

    def layer(i: int, roles: dict[str, Recipe]) -> dict[str, Recipe]:
        own = {
            role: Recipe(f"{layer_prefix.format(i)}{name}.weight") for role, name in norms.items()
        }
        return {role: moved(recipe) for role, recipe in roles.items()} | own

    return replace(
        weights,
        embed=moved(weights.embed),
        final_norm=moved(weights.final_norm),
        layers=tuple(layer(i, roles) for i, roles in enumerate(weights.layers)),
    )


def from_gguf_2(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    return _from_gguf(TWO, header)


def from_gguf_3(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    return _from_gguf(THREE, header)


def _from_gguf(version: Version, header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """GGUF files store norm weights with 1 added. They state neither which layers have a window
    nor, for the largest models, the scale of the scores: both follow llama.cpp.
    """
    plain = common.gguf_spec(header, version.name, qk_norm=version.qk_norm)
    fields = header.fields(f"{version.name}.")
    attention, layers, hidden = plain.attention, len(plain.layers), plain.hidden
    divisor = attention.head_dim
    if layers == version.layers_27b:
        divisor = hidden // attention.heads
    full = attention.rope
    if full is None:
        raise ModelError(header.file, "no rope")
    local = full
    if version.two_ropes:
        theta = fields.number("rope.freq_base_swa", 1.0, rope.LARGEST_THETA, default=LOCAL_THETA)
        local = Rope(theta)
    kinds = _periodic(layers, version.period)
    spec = _spec(
        version,
        replace(attention, scale=divisor**-0.5, softcap=_cap(fields, "attn_logit_softcapping")),
        [(attention.window, local) if kind == SLIDING else (None, full) for kind in kinds],
        norm=plain.final_norm,
        hidden=hidden,
        intermediate=plain.widths[0],
        vocab=plain.vocab,
        max_position=plain.max_position,
        tied=plain.tied_embeddings,
        embed_scale=_as_stored(hidden**0.5, "float32"),
        final_softcap=_cap(fields, "final_logit_softcapping"),
    )
    norms = {"mixer_norm_after": "post_attention_norm", "feed_forward_norm_after": "post_ffw_norm"}
    return spec, _with_norms(gguf_recipes(spec), "blk.{}.", norms, ("", ""))
