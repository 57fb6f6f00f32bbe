"""ERNIE 4.5, dense and with experts: Llama with rope pairs in adjacent rows. Experts are chosen by
softmax with a correction.
"""

from dataclasses import replace

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, FeedForward, Mlp, Recipe, Router, WeightRecipes

DEFAULTS: dict[str, object] = {
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
DEFAULT_HEAD_DIM = 128
SHARED = 2
"""Number of shared experts in a config.json without one (transformers 5, models/ernie4_5_moe)."""
LEAST_SUM = 1e-12
"""The sum by which a token's expert weights are divided is at least this."""
ROUTER = Router("softmax", correction=True, normalise=True, epsilon=LEAST_SUM)
CORRECTION = "model.layers.{}.mlp.moe_statics.e_score_correction_bias"
Mapped = tuple[DecoderSpec, WeightRecipes]


def from_hf(config: Fields) -> Mapped:
    config = common.with_defaults(config, **DEFAULTS)
    bias = config.flag("use_bias", default=False)
    spec = common.hf_spec(
        config,
        "ernie4_5",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        default_head_dim=DEFAULT_HEAD_DIM,
    )
    return spec, hf_recipes(spec, interleaved=True)


def from_hf_moe(config: Fields) -> Mapped:
    """Multi-token prediction layers are skipped."""
    config = common.with_defaults(config, **DEFAULTS)
    if config.flag("use_bias", default=False):
        raise config.refuse("use_bias", "false")
    if config.get("moe_norm_min") not in (None, LEAST_SUM):
        raise config.refuse("moe_norm_min", f"{LEAST_SUM:g}")
    spec = common.hf_spec(config, "ernie4_5", feed_forwards=_hf_feed_forwards(config))
    weights = hf_recipes(spec, experts.SHARED_EXPERTS, interleaved=True)
    weights = experts.corrected(spec, weights, CORRECTION)
    return spec, replace(weights, layers=tuple(map(_only_row, weights.layers)))


def _only_row(roles: dict[str, Recipe]) -> dict[str, Recipe]:
    """The recipes of a layer. The correction is the only row of a matrix."""
    key = "router_correction"
    return roles | ({key: replace(roles[key], expert=0)} if key in roles else {})


def _hf_feed_forwards(config: Fields) -> tuple[FeedForward, ...]:
    layers = common.hf_layers(config)
    count = config.integer("moe_num_experts", 1, experts.MOST_EXPERTS)
    mixture = experts.with_shared(
        count,
        config.integer("moe_k", 1, count),
        config.integer("moe_intermediate_size", 1, common.WIDEST),
        config.integer("moe_num_shared_experts", 0, experts.MOST_EXPERTS, default=SHARED),
        ROUTER,
    )
    first = config.integer("moe_layer_start_index", 0, layers, default=1)
    last = config.integer("moe_layer_end_index", -1, layers - 1, default=-1)
    step = config.integer("moe_layer_interval", 1, common.MOST_LAYERS, default=1)
    end = layers if last == -1 else last + 1
    return tuple(
        mixture if first <= i < end and (i + 1) % step == 0 else common.dense(config)
        for i in range(layers)
    )


def from_gguf(header: GgufHeader) -> Mapped:
    spec = common.gguf_spec(header, "ernie4_5")
    return spec, gguf_recipes(spec, interleaved=True)


def from_gguf_moe(header: GgufHeader) -> Mapped:
    fields = header.fields("ernie4_5-moe.")
    mixture = experts.deepseek_gguf(header, "ernie4_5-moe", ROUTER)
    if mixture.shared is not None and fields.get("expert_shared_feed_forward_length"):
        width = fields.integer("expert_shared_feed_forward_length", 1, common.WIDEST)
        mixture = replace(mixture, shared=Mlp("gated", width, "silu"))
    spec = common.gguf_spec(header, "ernie4_5-moe", feed_forward=mixture)
    dense = Mlp("gated", fields.integer("feed_forward_length", 1, common.WIDEST), "silu")
    first = fields.integer("leading_dense_block_count", 0, len(spec.layers), default=0)
    step = fields.integer("interleave_moe_layer_step", 1, common.MOST_LAYERS, default=1)
    layers = tuple(
        layer if i >= first and (i + 1) % step == 0 else replace(layer, feed_forward=dense)
        for i, layer in enumerate(spec.layers)
    )
    spec = replace(spec, layers=layers)
    weights = gguf_recipes(spec, interleaved=True)
    return spec, experts.corrected(spec, weights, experts.GGUF_CORRECTION)
