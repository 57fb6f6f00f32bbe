"""GLM-4.5 and 4.6: rope over half of the head, biases of q, k and v alone, dense layers before
those with experts, which are chosen by sigmoids with a correction.
"""

from dataclasses import replace

from penstock.model import common
from penstock.model.experts import MOST_EXPERTS
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import QWEN_EXPERTS, gguf_recipes, hf_recipes
from penstock.model.spec import (
    DecoderSpec,
    Experts,
    Groups,
    Mlp,
    Recipe,
    Router,
    WeightRecipes,
)

EPSILON = 1e-20
SIGMOID = 2
"""Value of a GGUF file's `expert_gating_func`."""
LARGEST_SCALE = 1e6
EXPERTS = QWEN_EXPERTS | {
    f"shared_{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}
Mapped = tuple[DecoderSpec, WeightRecipes]


def from_hf(config: Fields) -> Mapped:
    """Layers after `num_hidden_layers`, which predict further tokens, are left out."""
    layers = common.hf_layers(config)
    experts = config.integer("n_routed_experts", 1, MOST_EXPERTS)
    groups = config.integer("n_group", 1, experts, default=1)
    width = config.integer("moe_intermediate_size", 1, common.WIDEST)
    shared = config.integer("n_shared_experts", 0, MOST_EXPERTS, default=1)
    router = _router(
        normalise=config.flag("norm_topk_prob", default=True),
        scale=config.number("routed_scaling_factor", 0.0, LARGEST_SCALE, default=1.0),
        groups=groups,
        keep=config.integer("topk_group", 1, groups, default=1),
    )
    chosen = config.integer("num_experts_per_tok", 1, experts)
    mixture = _mixture(experts, chosen, width, shared, router)
    dense = config.integer("first_k_dense_replace", 0, layers, default=1)
    spec = common.hf_spec(
        config,
        "glm4moe",
        qkv_bias=config.flag("attention_bias", default=False),
        qk_norm=config.flag("use_qk_norm", default=False),
        feed_forwards=(common.dense(config),) * dense + (mixture,) * (layers - dense),
        part_rope=True,
    )
    correction = "model.layers.{}.mlp.gate.e_score_correction_bias"
    return spec, _corrected(spec, hf_recipes(spec, EXPERTS), correction)


def from_gguf(header: GgufHeader) -> Mapped:
    """`block_count` counts the layers that predict further tokens, which are left out."""
    fields = header.fields("glm4moe.")
    if fields.integer("expert_gating_func", 0, 255, default=SIGMOID) != SIGMOID:
        raise fields.refuse("expert_gating_func", f"{SIGMOID}, sigmoids")
    experts = fields.integer("expert_count", 1, MOST_EXPERTS)
    groups = fields.integer("expert_group_count", 1, experts, default=1)
    width = fields.integer("expert_feed_forward_length", 1, common.WIDEST)
    shared = fields.integer("expert_shared_count", 0, MOST_EXPERTS, default=1)
    router = _router(
        normalise=fields.flag("expert_weights_norm", default=True),
        scale=fields.number("expert_weights_scale", 0.0, LARGEST_SCALE, default=1.0),
        groups=groups,
        keep=fields.integer("expert_group_used_count", 1, groups, default=1),
    )
    chosen = fields.integer("expert_used_count", 1, experts)
    mixture = _mixture(experts, chosen, width, shared, router)
    normed = "blk.0.attn_q_norm.weight" in header.shapes
    spec = common.gguf_spec(header, "glm4moe", qk_norm=normed, feed_forward=mixture, part_rope=True)
    every = len(spec.layers)
    kept = every - fields.integer("nextn_predict_layers", 0, every - 1, default=0)
    dense = fields.integer("leading_dense_block_count", 0, kept, default=1)
    plain = Mlp("gated", fields.integer("feed_forward_length", 1, common.WIDEST), "silu")
    first = tuple(replace(layer, feed_forward=plain) for layer in spec.layers[:dense])
    spec = replace(spec, layers=first + spec.layers[dense:kept])
    weights = _corrected(spec, gguf_recipes(spec), "blk.{}.exp_probs_b.bias")
    norm = "feed_forward_norm"
    layers = tuple(
        {**layer, norm: Recipe(f"blk.{i}.post_attention_norm.weight")}
        for i, layer in enumerate(weights.layers)
    )
    return spec, replace(weights, layers=layers)


def _mixture(experts: int, chosen: int, width: int, shared: int, router: Router) -> Experts:
    """`shared` always-on experts are one of their widths together."""
    return Experts(
        experts=experts,
        experts_per_token=chosen,
        expert=Mlp("gated", width, "silu"),
        router=router,
        shared=Mlp("gated", shared * width, "silu") if shared else None,
    )


def _router(*, normalise: bool, scale: float, groups: int, keep: int) -> Router:
    return Router(
        "sigmoid",
        correction=True,
        groups=Groups(groups, keep, "top2_sum") if groups > 1 else None,
        normalise=normalise,
        epsilon=EPSILON if normalise else None,
        scale=None if scale == 1.0 else scale,
    )


def _corrected(spec: DecoderSpec, weights: WeightRecipes, tensor: str) -> WeightRecipes:
    """The recipes with those of the routers' corrections."""
    layers = tuple(
        recipes | {"router_correction": Recipe(tensor.format(i))}
        if isinstance(layer.feed_forward, Experts)
        else recipes
        for i, (layer, recipes) in enumerate(zip(spec.layers, weights.layers, strict=True))
    )
    return replace(weights, layers=layers)
