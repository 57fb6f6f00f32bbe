"""Checkpoints without an output head: bare models, as embedding models are published, and models
with a classification head.
"""

from dataclasses import replace
from pathlib import Path

from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.files import tensor_names
from penstock.model.spec import DecoderSpec, Recipe, WeightRecipes

BARE = "Model"
CLASSIFIER = "ForSequenceClassification"
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
BASES = {f"{name}{kind}": f"{name}ForCausalLM" for name in FAMILIES for kind in (BARE, CLASSIFIER)}
"""Architectures by the one that has the same decoder and an output head."""
MOST_LABELS = 1 << 16
_PREFIX = "model."
_SCORE = "score.weight"

Stored = tuple[DecoderSpec, WeightRecipes, bool]


def as_stored(
    config: Fields, architecture: str, spec: DecoderSpec, weights: WeightRecipes
) -> Stored:
    """Spec and recipes for the tensors that a directory has, and whether it has no output head: the
    embedding stands in its place then, and nothing may be sampled from it.
    """
    classifier = architecture.endswith(CLASSIFIER)
    if architecture not in BASES and architecture.removesuffix("ForCausalLM") not in FAMILIES:
        return spec, weights, False
    names = _names(config.file.parent)
    if weights.embed.tensor not in names and weights.embed.tensor[len(_PREFIX) :] in names:
        weights = _without_prefix(weights)
    headless = bool(names) and "lm_head.weight" not in names
    only = classifier or (headless and not spec.tied_embeddings)
    if only:
        spec, weights = replace(spec, tied_embeddings=True), replace(weights, head=None)
    if classifier:
        spec = replace(spec, labels=_labels(config))
        weights = replace(weights, score=Recipe(_SCORE))
    return spec, weights, only


def _names(directory: Path) -> set[str]:
    """Names of the tensors; none of damaged files, which the decoder reports."""
    try:
        return tensor_names(directory)
    except ModelError:
        return set()


def _labels(config: Fields) -> int:
    """As transformers: `num_labels`, or else the entries of `id2label`, or else 2."""
    named = config.get("id2label")
    default = len(named) if isinstance(named, dict) and named else 2
    return config.integer("num_labels", 1, MOST_LABELS, default=default)


def _without_prefix(weights: WeightRecipes) -> WeightRecipes:
    """Recipes of a bare model, whose tensors are not within `model`."""

    def bare(recipe: Recipe) -> Recipe:
        return replace(recipe, tensor=recipe.tensor.removeprefix(_PREFIX))

    return replace(
        weights,
        embed=bare(weights.embed),
        final_norm=bare(weights.final_norm),
        layers=tuple(
            {role: bare(each) for role, each in layer.items()} for layer in weights.layers
        ),
    )
