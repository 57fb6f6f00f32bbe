"""The text of Qwen3-VL, dense and with experts, which is a Qwen3: for text, the three positions of
its rope are equal.
"""

from dataclasses import replace

from penstock.model import common, experts
from penstock.model.families import qwen3, qwen3_moe
from penstock.model.fields import Fields
from penstock.model.files import tensor_shape
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, with_prefix
from penstock.model.spec import DecoderSpec, Experts, Recipe, WeightRecipes

PREFIX = "model.language_model."
THETA = 5e5
Mapped = tuple[DecoderSpec, WeightRecipes]


def from_hf(config: Fields) -> Mapped:
    """The text part of a model that also takes images. Images are not supported."""
    spec, weights = qwen3.from_hf(_text(config))
    return spec, with_prefix(weights, PREFIX)


def from_hf_moe(config: Fields) -> Mapped:
    """As `from_hf`; experts are stacked: [experts, inputs, outputs] in published files, [experts,
    outputs, inputs] in newer ones.
    """
    common.refuse_quantised(config)
    spec, weights = qwen3_moe.from_hf(common.with_defaults(_text(config), norm_topk_prob=True))

    def experts_of(i: int) -> dict[str, Recipe]:
        form, at = spec.layers[i].feed_forward, f"layers.{i}.mlp.experts."
        if not isinstance(form, Experts):
            return {}
        width, name = form.expert.intermediate, f"{PREFIX}{at}gate_up_proj"
        newer = tensor_shape(config.file.parent, name) == (form.experts, 2 * width, spec.hidden)
        return _stacked(f"model.{at}", width, transposed=not newer)

    layers = tuple(own | experts_of(i) for i, own in enumerate(weights.layers))
    return spec, with_prefix(replace(weights, layers=layers), PREFIX)


def _text(config: Fields) -> Fields:
    """The keys of the text part, with those that the file has outside it."""
    text = config.within("text_config")
    if text is None:
        raise config.refuse("text_config", "an object")
    if config.get("tie_word_embeddings") is not None:
        tied = config.flag("tie_word_embeddings", default=False)
        text = text.changed({"tie_word_embeddings": tied})
    quantised = config.get("quantization_config")
    return common.with_defaults(text, rope_theta=THETA, quantization_config=quantised)


def _stacked(at: str, width: int, *, transposed: bool) -> dict[str, Recipe]:
    """Recipes of stacked experts, with the outputs of gate before those of up."""
    fused = Recipe(f"{at}gate_up_proj", transposed=transposed)
    return {
        "gate": replace(fused, rows=(0, width)),
        "up": replace(fused, rows=(width, 2 * width)),
        "down": Recipe(f"{at}down_proj", transposed=transposed),
    }


def from_gguf(header: GgufHeader) -> Mapped:
    spec = common.gguf_spec(header, "qwen3vl", qk_norm=True)
    return spec, gguf_recipes(spec)


def from_gguf_moe(header: GgufHeader) -> Mapped:
    mixture = experts.gguf(header, "qwen3vlmoe", normalise=True)
    spec = common.gguf_spec(header, "qwen3vlmoe", qk_norm=True, feed_forward=mixture)
    return spec, gguf_recipes(spec)
