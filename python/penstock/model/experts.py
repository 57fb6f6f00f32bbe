"""Mixtures of experts: what the families' metadata say of them."""

from penstock.model.common import MOST_LAYERS, WIDEST, dense, hf_layers
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.spec import Experts, FeedForward, Mlp, Router

MOST_EXPERTS = 1 << 12


def count(config: Fields) -> int:
    """Routed experts, under the name that published files use or the one transformers 5 writes."""
    key = "num_local_experts" if config.get("num_experts") is None else "num_experts"
    return config.integer(key, 1, MOST_EXPERTS)


def qwen_layers(config: Fields, shared: Mlp | None = None) -> tuple[FeedForward, ...]:
    """Feed-forwards of Qwen's mixtures: every `decoder_sparse_step`-th layer has experts, but for
    `mlp_only_layers`. `shared` has a gate.
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
    """The experts of a GGUF file, of `width` each. `shared` has a gate."""
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
