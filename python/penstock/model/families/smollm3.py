"""SmolLM3: Llama without rope in some layers."""

from dataclasses import replace

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import DecoderSpec, WeightRecipes

THETA = 2e6


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    config = common.with_defaults(config, rope_theta=THETA, tie_word_embeddings=True)
    bias = config.flag("attention_bias", default=False)
    if config.flag("use_sliding_window", default=False) and config.get("layer_types") is None:
        raise config.refuse("layer_types", "the type of each layer in models with windows")
    spec = common.hf_spec(
        config,
        "smollm3",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", default=False),
        windows=common.upper_windows(config),
    )
    return _with_rope(spec, common.rotating_layers(config)), hf_recipes(spec)


def _with_rope(spec: DecoderSpec, rotating: list[bool]) -> DecoderSpec:
    return common.with_attention(
        spec, lambda i, mixer: mixer if rotating[i] else replace(mixer, rope=None)
    )


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """GGUF has no key for the layers without rope; they are every 4th, as in llama.cpp."""
    spec = common.gguf_spec(header, "smollm3")
    weights = gguf_recipes(spec, interleaved=True)
    rotating = common.unrotated_every(len(spec.layers), common.UNROTATED_PERIOD)
    return _with_rope(spec, rotating), weights
