"""Checkpoints without an output head: bare models (the usual form of embedding models), and models
with a classification head.
"""

from dataclasses import replace

from penstock.model.fields import Fields
from penstock.model.files import stored_names
from penstock.model.spec import DecoderSpec, Recipe, WeightRecipes

BARE = "Model"
CLASSIFIER = "ForSequenceClassification"
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
BASES = {f"{name}{kind}": f"{name}ForCausalLM" for name in FAMILIES for kind in (BARE, CLASSIFIER)}
"""For each architecture without an output head, the one with the same decoder and an
output head.
"""
MOST_LABELS = 1 << 16
_PREFIX = "model."
_SCORE = "score.weight"
_HEAD = "lm_head."
"""Start of the names of the output head's tensors, of which a quantised one has several."""

Stored = tuple[DecoderSpec, WeightRecipes, bool]


def as_stored(
    config: Fields, architecture: str, spec: DecoderSpec, weights: WeightRecipes
) -> Stored:
    """Spec and recipes adapted to the tensors of a directory, and whether the output head is
    missing. In that case the recipes name the embedding in its place, and nothing may be sampled.
    """
    classifier = architecture.endswith(CLASSIFIER)
    if architecture not in BASES and architecture.removesuffix("ForCausalLM") not in FAMILIES:
        return spec, weights, False
    names = stored_names(config.file.parent)
    if weights.embed.tensor not in names and weights.embed.tensor[len(_PREFIX) :] in names:
        weights = _without_prefix(weights)
    headless = bool(names) and not any(name.startswith(_HEAD) for name in names)
    only = classifier or (headless and not spec.tied_embeddings)
    if only:
        spec, weights = replace(spec, tied_embeddings=True), replace(weights, head=None)
    if classifier:
        spec = replace(spec, labels=_labels(config))
        weights = replace(weights, score=Recipe(_SCORE))
    return spec, weights, only


def _labels(config: Fields) -> int:
    """Number of labels as in transformers: `num_labels`, else the entries of `id2label`, else 2."""
    named = config.get("id2label")
    default = len(named) if isinstance(named, dict) and named else 2
    return config.integer("num_labels", 1, MOST_LABELS, default=default)


def _without_prefix(weights: WeightRecipes) -> WeightRecipes:
    """Recipes for a bare model, whose tensor names have no `model.` prefix."""

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
