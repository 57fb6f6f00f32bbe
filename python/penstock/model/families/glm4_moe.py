"""GLM-4.5 and 4.6: rope over half of each head, biases on q, k and v only, dense layers before the
layers with experts. Experts are chosen by sigmoids with a correction.
"""

from dataclasses import replace

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, Recipe, WeightRecipes

Mapped = tuple[DecoderSpec, WeightRecipes]


def from_hf(config: Fields) -> Mapped:
    spec = common.hf_spec(
        config,
        "glm4moe",
        qkv_bias=config.flag("attention_bias", default=False),
        qk_norm=config.flag("use_qk_norm", default=False),
        feed_forwards=experts.deepseek_layers(config, experts.sigmoid_router(config)),
        part_rope=True,
    )
    weights = hf_recipes(spec, experts.SHARED_EXPERTS)
    return spec, experts.corrected(spec, weights, experts.HF_CORRECTION)


def from_gguf(header: GgufHeader) -> Mapped:
    """Spec and recipes of a GGUF file. `block_count` includes multi-token prediction layers, which
    are skipped.
    """
    fields = header.fields("glm4moe.")
    if fields.integer("expert_gating_func", 0, 255, default=experts.SIGMOID) != experts.SIGMOID:
        raise fields.refuse("expert_gating_func", f"{experts.SIGMOID}, sigmoids")
    mixture = experts.deepseek_gguf(header, "glm4moe", experts.sigmoid_gguf_router(fields))
    normed = "blk.0.attn_q_norm.weight" in header.shapes
    spec = common.gguf_spec(header, "glm4moe", qk_norm=normed, feed_forward=mixture, part_rope=True)
    spec = experts.after_dense(header, "glm4moe", spec)
    weights = experts.corrected(spec, gguf_recipes(spec), experts.GGUF_CORRECTION)
    norm = "feed_forward_norm"
    layers = tuple(
        {**layer, norm: Recipe(f"blk.{i}.post_attention_norm.weight")}
        for i, layer in enumerate(weights.layers)
    )
    return spec, replace(weights, layers=layers)
