"""Llama 4's text model without experts (MobileLLM-R1): chunked attention with rope in most layers,
full attention without rope and with growing queries in the others, norms after rotation.
"""

from dataclasses import replace

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.recipes import hf_recipes
from penstock.model.spec import Attention, DecoderSpec, Layer, Recipe, Temperature, WeightRecipes

CHUNK = 8192
PERIOD = 4
"""Every so manieth layer has no rope."""


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    layers = common.hf_layers(config)
    if _layers_of_experts(config, layers):
        raise config.refuse("moe_layers", "dense models (no experts)")
    spec = common.hf_spec(_dense(config), "llama4", default_head_dim=128)
    eps = spec.final_norm.eps if config.flag("use_qk_norm", default=True) else None
    chunk = config.integer("attention_chunk_size", 1, common.LONGEST_CONTEXT, default=CHUNK)
    temperature = None
    if config.flag("attn_temperature_tuning", default=True):
        temperature = Temperature(
            config.number("floor_scale", 1.0, 1e9, default=8192),
            config.number("attn_scale", 0.0, 1e6, default=0.1),
        )

    def changed(layer: Layer, rotates: bool) -> Layer:
        mixer = layer.mixer
        assert isinstance(mixer, Attention)
        if rotates:
            return replace(layer, mixer=replace(mixer, chunk=chunk, qk_norm_after=eps))
        return replace(layer, mixer=replace(mixer, rope=None, temperature=temperature))

    pairs = zip(spec.layers, _rotating(config, layers), strict=True)
    spec = replace(spec, layers=tuple(changed(layer, rotates) for layer, rotates in pairs))
    return spec, _recipes(spec)


def _dense(config: Fields) -> Fields:
    """Dense layers have a width of their own; the key of Llama is that of experts."""
    width = config.integer("intermediate_size_mlp", 1, common.WIDEST, default=16384)
    no_experts = dict.fromkeys(common.MOE_KEYS)
    return config.changed({"intermediate_size": width, **no_experts})


def _layers_of_experts(config: Fields, layers: int) -> list[object]:
    listed = config.get("moe_layers")
    if isinstance(listed, list):
        return listed
    step = config.integer("interleave_moe_layer_step", 0, common.MOST_LAYERS, default=1)
    return list(range(step - 1, layers, step)) if step else []


def _rotating(config: Fields, layers: int) -> list[bool]:
    """Layers with rope; the key says 1 for those, in spite of its name."""
    listed = config.get("no_rope_layers")
    if not listed:
        period = config.integer("no_rope_layer_interval", 1, common.MOST_LAYERS, default=PERIOD)
        return [(i + 1) % period != 0 for i in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers or not set(listed) <= {0, 1}:
        raise config.refuse("no_rope_layers", f"{layers} entries of 0 or 1")
    return [bool(rotates) for rotates in listed]


def _recipes(spec: DecoderSpec) -> WeightRecipes:
    """Pairs of rotation are neighbours in q and k; the feed-forward has another name."""

    def renamed(role: str, recipe: Recipe) -> Recipe:
        recipe = replace(recipe, tensor=recipe.tensor.replace(".mlp.", ".feed_forward."))
        if role not in ("q", "k"):
            return recipe
        return replace(recipe, interleaved=spec.attention.head_dim)

    weights = hf_recipes(spec)
    layers = tuple(
        {role: renamed(role, recipe) for role, recipe in layer.items()} for layer in weights.layers
    )
    return replace(weights, layers=layers)
