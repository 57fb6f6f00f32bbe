"""Reads the mixtures of experts that several families share, from their metadata."""

from dataclasses import replace

from penstock.model.common import MOST_LAYERS, WIDEST, dense, hf_layers
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import QWEN_EXPERTS
from penstock.model.spec import (
    DecoderSpec,
    Experts,
    FeedForward,
    Groups,
    Mlp,
    Recipe,
    Router,
    WeightRecipes,
)

MOST_EXPERTS = 1 << 12
LARGEST_SCALE = 1e6
EPSILON = 1e-20
"""Added to the sum of a token's sigmoid expert weights before they are divided by it."""
SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func` in a GGUF file."""
SHARED_EXPERTS = QWEN_EXPERTS | {
    f"shared_{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}
"""Names of an expert layer's modules in DeepSeek and GLM, by role in the weight recipes."""
HF_CORRECTION = "model.layers.{}.mlp.gate.e_score_correction_bias"
GGUF_CORRECTION = "blk.{}.exp_probs_b.bias"


def count(config: Fields) -> int:
    """Number of routed experts. Published files and transformers 5 have different keys for it."""
    key = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    return config.integer(key, 1, MOST_EXPERTS)


def qwen_layers(config: Fields, shared: Mlp | None = None) -> tuple[FeedForward, ...]:
    """Feed-forwards of Qwen's mixtures: every `decoder_sparse_step`-th layer has experts, except
    `mlp_only_layers`. The output of the expert `shared` is gated.
    """
    experts, layers = count(config), hf_layers(config)
    mixture = Experts(
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", 1, experts),
        expert=Mlp("gated", config.integer("moe_intermediate_size", 1, WIDEST), "silu"),
        router=Router("softmax", normalise=config.flag("norm_topk_prob", default=False)),
        shared=shared,
        shared_gate=shared is not None,
    )
    step = config.integer("decoder_sparse_step", 1, MOST_LAYERS, default=1)
    plain = config.get("mlp_only_layers") or []
    if not isinstance(plain, list) or not all(isinstance(layer, int) for layer in plain):
        raise config.refuse("mlp_only_layers", "a list of layers")
    has_experts = [(i + 1) % step == 0 and i not in plain for i in range(layers)]
    if all(has_experts):
        return (mixture,) * layers
    return tuple(mixture if mixed else dense(config) for mixed in has_experts)


def gguf(
    header: GgufHeader,
    architecture: str,
    *,
    width: str = "expert_feed_forward_length",
    normalise: bool,
    shared: Mlp | None = None,
) -> Experts:
    """The experts of a GGUF file. The key named `width` has their intermediate size. The output of
    the expert `shared` is gated.
    """
    fields = header.fields(f"{architecture}.")
    experts = fields.integer("expert_count", 1, MOST_EXPERTS)
    return Experts(
        experts=experts,
        experts_per_token=fields.integer("expert_used_count", 1, experts),
        expert=Mlp("gated", fields.integer(width, 1, WIDEST), "silu"),
        router=Router("softmax", normalise=normalise),
        shared=shared,
        shared_gate=shared is not None,
    )


def deepseek_layers(config: Fields, router: Router) -> tuple[FeedForward, ...]:
    """Feed-forwards of DeepSeek and GLM: `first_k_dense_replace` dense layers, then layers of
    routed and shared experts. Multi-token prediction layers (after `num_hidden_layers`) are
    skipped.
    """
    layers = hf_layers(config)
    experts = config.integer("n_routed_experts", 1, MOST_EXPERTS)
    mixture = with_shared(
        experts,
        config.integer("num_experts_per_tok", 1, experts),
        config.integer("moe_intermediate_size", 1, WIDEST),
        config.integer("n_shared_experts", 0, MOST_EXPERTS, default=1),
        router,
    )
    plain = config.integer("first_k_dense_replace", 0, layers, default=1)
    return (dense(config),) * plain + (mixture,) * (layers - plain)


def deepseek_gguf(header: GgufHeader, architecture: str, router: Router) -> Experts:
    fields = header.fields(f"{architecture}.")
    experts = fields.integer("expert_count", 1, MOST_EXPERTS)
    return with_shared(
        experts,
        fields.integer("expert_used_count", 1, experts),
        fields.integer("expert_feed_forward_length", 1, WIDEST),
        fields.integer("expert_shared_count", 0, MOST_EXPERTS, default=1),
        router,
    )


def after_dense(header: GgufHeader, architecture: str, spec: DecoderSpec) -> DecoderSpec:
    """The spec of a GGUF file with its leading dense layers, and without multi-token prediction
    layers, which `block_count` may include.
    """
    fields, every = header.fields(f"{architecture}."), len(spec.layers)
    kept = every - fields.integer("nextn_predict_layers", 0, every - 1, default=0)
    plain = fields.integer("leading_dense_block_count", 0, kept, default=1)
    mlp = Mlp("gated", fields.integer("feed_forward_length", 1, WIDEST), "silu")
    first = tuple(replace(layer, feed_forward=mlp) for layer in spec.layers[:plain])
    return replace(spec, layers=first + spec.layers[plain:kept])


def with_shared(experts: int, chosen: int, width: int, shared: int, router: Router) -> Experts:
    """A mixture with `shared` experts that every token uses. Checkpoints store these as one expert
    of their total width.
    """
    return Experts(
        experts=experts,
        experts_per_token=chosen,
        expert=Mlp("gated", width, "silu"),
        router=router,
        shared=Mlp("gated", shared * width, "silu") if shared else None,
    )


def sigmoid_router(config: Fields) -> Router:
    """The router of DeepSeek-V3 and GLM, from a config.json: sigmoids with a correction, groups
    scored by the sum of their two best experts.
    """
    count, keep = _groups(config, "n_routed_experts", "n_group", "topk_group")
    return _sigmoids(
        count,
        keep,
        config.flag("norm_topk_prob", default=True),
        config.number("routed_scaling_factor", 0.0, LARGEST_SCALE, default=1.0),
    )


def sigmoid_gguf_router(fields: Fields) -> Router:
    count, keep = _groups(fields, "expert_count", "expert_group_count", "expert_group_used_count")
    return _sigmoids(
        count,
        keep,
        fields.flag("expert_weights_norm", default=True),
        fields.number("expert_weights_scale", 0.0, LARGEST_SCALE, default=1.0),
    )


def _groups(fields: Fields, experts: str, count: str, keep: str) -> tuple[int, int]:
    """Number of groups of experts, and number of groups from which experts are chosen."""
    whole = fields.integer(experts, 1, MOST_EXPERTS)
    groups = fields.integer(count, 1, whole, default=1)
    if whole % groups:
        raise fields.refuse(count, f"a divisor of the {whole} experts")
    return groups, fields.integer(keep, 1, groups, default=1)


def _sigmoids(count: int, keep: int, normalise: bool, scale: float) -> Router:
    return Router(
        "sigmoid",
        correction=True,
        groups=Groups(count, keep, "top2_sum") if count > 1 else None,
        normalise=normalise,
        epsilon=EPSILON if normalise else None,
        scale=None if scale == 1.0 else scale,
    )


def softmax_router(config: Fields) -> Router:
    """The router of DeepSeek-V2: softmax, optionally with groups scored by their best expert."""
    method = config.text("topk_method", default="greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.refuse("topk_method", "greedy group_limited_greedy")
    if config.flag("norm_topk_prob", default=False):
        raise config.refuse("norm_topk_prob", "false, as in all published models")
    count, keep = 1, 1
    if method == "group_limited_greedy":
        count, keep = _groups(config, "n_routed_experts", "n_group", "topk_group")
    scale = config.number("routed_scaling_factor", 0.0, LARGEST_SCALE, default=1.0)
    return _softmax(count, keep, scale)


def softmax_gguf_router(fields: Fields) -> Router:
    """`softmax_router` of a GGUF file. llama.cpp treats a scale of 0 as missing."""
    count, keep = _groups(fields, "expert_count", "expert_group_count", "expert_group_used_count")
    if fields.flag("expert_weights_norm", default=False):
        raise fields.refuse("expert_weights_norm", "false, as in all published models")
    # llama.cpp writes 0 for a missing scale.
    scale = fields.number("expert_weights_scale", 0.0, LARGEST_SCALE, default=1.0) or 1.0
    return _softmax(count, keep, scale)


def _softmax(count: int, keep: int, scale: float) -> Router:
    return Router(
        "softmax",
        groups=Groups(count, keep, "max") if count > 1 else None,
        scale=None if scale == 1.0 else scale,
    )


def corrected(spec: DecoderSpec, weights: WeightRecipes, tensor: str) -> WeightRecipes:
    """The recipes, extended by the router's correction in layers that have one. `tensor`: name of
    its tensor with `{}` for the layer.
    """

    def correction(i: int) -> dict[str, Recipe]:
        form = spec.layers[i].feed_forward
        if not isinstance(form, Experts) or not form.router.correction:
            return {}
        return {"router_correction": Recipe(tensor.format(i))}

    layers = tuple(recipes | correction(i) for i, recipes in enumerate(weights.layers))
    return replace(weights, layers=layers)
