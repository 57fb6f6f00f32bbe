"""DeepSeek-V2, V3, R1 and Kimi-K2: latent attention, dense layers before the layers with experts.
Experts are chosen by softmax (V2), or by sigmoids with a correction.
"""

from penstock.model import common, experts, rope
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import (
    DecoderSpec,
    FeedForward,
    LatentAttention,
    Norm,
    Rope,
    WeightRecipes,
)

LATENT_EPS = 1e-6
"""Epsilon of the norms of latents, which is not in the metadata. The other norms may have another
epsilon.
"""
Mapped = tuple[DecoderSpec, WeightRecipes]


def from_hf_2(config: Fields) -> Mapped:
    if config.get("scoring_func") not in (None, "softmax"):
        raise config.refuse("scoring_func", "softmax")
    layers = experts.deepseek_layers(config, experts.softmax_router(config))
    return latent_from_hf(config, "deepseek2", layers)


def from_hf_3(config: Fields) -> Mapped:
    if config.get("scoring_func") not in (None, "sigmoid"):
        raise config.refuse("scoring_func", "sigmoid")
    if config.get("topk_method") not in (None, "noaux_tc"):
        raise config.refuse("topk_method", "noaux_tc")
    layers = experts.deepseek_layers(config, experts.sigmoid_router(config))
    return latent_from_hf(config, "deepseek3", layers)


def latent_from_hf(config: Fields, family: str, layers: tuple[FeedForward, ...]) -> Mapped:
    """Spec and recipes of a config.json with DeepSeek's keys, and `layers` as its feed-forwards.
    Multi-token prediction layers (after `num_hidden_layers`) are skipped.
    """
    if config.flag("attention_bias", default=False):
        raise config.refuse("attention_bias", "false")
    if config.integer("moe_layer_freq", 1, common.MOST_LAYERS, default=1) != 1:
        raise config.refuse("moe_layer_freq", "1")
    blocks = common.has_block_scales(config)
    spec = common.hf_spec(
        config,
        family,
        feed_forwards=layers,
        latent=_hf_attention(config),
        quantised=blocks,
    )
    interleaved = config.flag("rope_interleave", default=True)
    weights = hf_recipes(spec, experts.SHARED_EXPERTS, interleaved=interleaved, block_scales=blocks)
    return spec, experts.corrected(spec, weights, experts.HF_CORRECTION)


def _hf_attention(config: Fields) -> LatentAttention:
    own = rope.from_hf(config)
    query_rank = None
    if config.get("q_lora_rank") is not None:
        query_rank = config.integer("q_lora_rank", 1, common.WIDEST)
    return _attention(
        config,
        heads="num_attention_heads",
        kv_rank="kv_lora_rank",
        plain=config.integer("qk_nope_head_dim", 1, common.WIDEST),
        rotated="qk_rope_head_dim",
        value="v_head_dim",
        query_rank=query_rank,
        own=own,
        factor=rope.softmax_factor(config),
    )


def _attention(
    fields: Fields,
    *,
    heads: str,
    kv_rank: str,
    plain: int,
    rotated: str,
    value: str,
    query_rank: int | None,
    own: Rope,
    factor: float,
) -> LatentAttention:
    """Latent attention from `fields`. The string arguments are keys. `factor` multiplies the scores
    in addition to the usual scale.
    """
    rope_dim = fields.integer(rotated, 2, common.WIDEST)
    if rope_dim % 2:
        raise fields.refuse(rotated, "pairs of rotation")
    return LatentAttention(
        heads=fields.integer(heads, 1, common.MOST_HEADS),
        kv_rank=fields.integer(kv_rank, 1, common.WIDEST),
        plain_dim=plain,
        rope_dim=rope_dim,
        value_dim=fields.integer(value, 1, common.WIDEST),
        norm=Norm("rms", LATENT_EPS),
        query_rank=query_rank,
        rope=own,
        scale=None if factor == 1.0 else (plain + rope_dim) ** -0.5 * factor,
    )


def from_gguf(header: GgufHeader) -> Mapped:
    """Newer files store the projections from the latent to keys and to values separately, and have
    head sizes in keys with `_mla`; older files use the plain keys. Converters leave out multi-token
    prediction layers. A file without `expert_gating_func` is DeepSeek-V2.
    """
    fields = header.fields("deepseek2.")
    gating = fields.integer("expert_gating_func", 0, 255, default=experts.SOFTMAX)
    if gating not in (experts.SOFTMAX, experts.SIGMOID):
        known = f"{experts.SOFTMAX}, softmax, and {experts.SIGMOID}, sigmoids"
        raise fields.refuse("expert_gating_func", known)
    sigmoids = gating == experts.SIGMOID
    router = experts.sigmoid_gguf_router if sigmoids else experts.softmax_gguf_router
    mixture = experts.deepseek_gguf(header, "deepseek2", router(fields))
    spec = common.gguf_spec(
        header, "deepseek2", feed_forward=mixture, latent=_gguf_attention(fields)
    )
    spec = experts.after_dense(header, "deepseek2", spec)
    split = "blk.0.attn_k_b.weight" in header.shapes
    weights = gguf_recipes(spec, interleaved=True, split_latent=split)
    return spec, experts.corrected(spec, weights, experts.GGUF_CORRECTION)


def _gguf_attention(fields: Fields) -> LatentAttention:
    new = fields.get("attention.key_length_mla") is not None
    length = "attention.{}_length_mla" if new else "attention.{}_length"
    rotated, key = "rope.dimension_count", length.format("key")
    rope_dim = fields.integer(rotated, 2, common.WIDEST)
    plain = fields.integer(key, rope_dim + 1, common.WIDEST) - rope_dim
    query_rank = None
    if fields.get("attention.q_lora_rank"):
        query_rank = fields.integer("attention.q_lora_rank", 1, common.WIDEST)
    own = rope.from_gguf(fields, has_factors=False, latent=True)
    return _attention(
        fields,
        heads="attention.head_count",
        kv_rank="attention.kv_lora_rank",
        plain=plain,
        rotated=rotated,
        value=length.format("value"),
        query_rank=query_rank,
        own=own,
        factor=rope.gguf_softmax_factor(fields, own),
    )
