"""GLM-4.7-Flash: the latent attention and the experts of DeepSeek-V3. GGUF files name it
"deepseek2".
"""

from penstock.model import common, experts
from penstock.model.families import deepseek
from penstock.model.fields import Fields
from penstock.model.spec import DecoderSpec, FeedForward, WeightRecipes

KINDS = ("dense", "sparse")


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    return deepseek.latent_from_hf(config, "glm4moelite", _feed_forwards(config))


def _feed_forwards(config: Fields) -> tuple[FeedForward, ...]:
    """Feed-forwards by `mlp_layer_types`; without it, DeepSeek's keys."""
    router, key = experts.sigmoid_router(config), "mlp_layer_types"
    if config.get(key) is None:
        return experts.deepseek_layers(config, router)
    types = common.layer_kinds(config, key, common.hf_layers(config), KINDS)
    sparse = config.changed({"first_k_dense_replace": 0})
    mixtures = experts.deepseek_layers(sparse, router)
    return tuple(
        mixture if kind == "sparse" else common.dense(config)
        for kind, mixture in zip(types, mixtures, strict=True)
    )
