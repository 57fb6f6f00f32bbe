"""Weight recipes of checkpoints whose matrices are integer codes: GPTQ, AWQ, AutoRound, and packed
integers of compressed-tensors. Families describe the unquantised model; this is one pass over
their recipes.
"""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import replace
from typing import cast

from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.quantization import Quantization, Scheme, are_words, tensors
from penstock.model.sizing import Part
from penstock.model.spec import (
    CodeLayout,
    Codes,
    DecoderSpec,
    Experts,
    Recipe,
    WeightRecipes,
)

EXPERT = "{e}"
PATIENCE = 10.0
"""CPU seconds that matching all patterns of one checkpoint may take."""
_STEMS = ("qweight", "weight_packed")
"""Names of tensors of codes, after the module's."""
_WEIGHT = ".weight"
_LATENT = ("q_a", "kv_a", "kv_b", "k_b", "v_b")
_CONVOLUTION = ("conv_b", "conv_c", "conv_x", "conv_out")
_PARTS: dict[str, Part] = {
    **dict.fromkeys(("q", "k", "v", "o", *_LATENT, *_CONVOLUTION), "attention"),
    **dict.fromkeys(("shared_gate", "shared_up", "shared_down"), "shared"),
    **dict.fromkeys(("router", "shared_factor"), "router"),
}
"""Parts of the roles that have the same part in all layers."""


def are_codes(found: Quantization) -> bool:
    """Whether all quantised matrices are stored as integer codes that the decoders read."""
    return all(are_words(scheme) for scheme in found.schemes)


def quantised(
    config: Fields,
    weights: WeightRecipes,
    spec: DecoderSpec,
    found: Quantization,
    names: Set[str],
) -> WeightRecipes:
    """`weights` with recipes of codes for the quantised matrices. `names`: the tensors of the
    checkpoint, which decide whether a matrix is quantised; if they are empty, the settings `found`
    do.

    Raises ModelError for codes of a module that the settings exclude, and for experts of one layer
    with different settings.
    """

    began = time.process_time()

    def stored(recipe: Recipe, part: Part, experts: int | None = None) -> Recipe:
        if time.process_time() - began > PATIENCE:
            problem = f"its patterns take more than {PATIENCE:g} seconds"
            raise ModelError(config.file, f"quantization_config: {problem}")
        scheme = _scheme(config, found, recipe.module, part, experts)
        if recipe.tensor.endswith(_WEIGHT):
            return _as_stored(config, recipe, scheme, found, names)
        if scheme is None or recipe.tensor in names:
            return recipe
        problem = f"{found.describe()} of the stack {recipe.tensor} is not supported"
        raise ModelError(config.file, f"quantization_config: {problem}")

    def layer(i: int, roles: dict[str, Recipe]) -> dict[str, Recipe]:
        form = spec.layers[i].feed_forward
        experts = form.experts if isinstance(form, Experts) else None
        inner: Part = "dense" if experts is None else "experts"
        parts = _PARTS | dict.fromkeys(("gate", "up", "down"), inner)
        return {
            role: stored(recipe, parts[role], experts) if role in parts else recipe
            for role, recipe in roles.items()
        }

    return replace(
        weights,
        embed=stored(weights.embed, "embedding"),
        head=None if weights.head is None else stored(weights.head, "head"),
        layers=tuple(layer(i, roles) for i, roles in enumerate(weights.layers)),
    )


def _scheme(
    config: Fields, found: Quantization, module: str, part: Part, experts: int | None
) -> Scheme | None:
    if EXPERT not in module or experts is None:
        return found.scheme(module, part)
    each = {found.scheme(module.replace(EXPERT, str(e)), part) for e in range(experts)}
    if len(each) > 1:
        problem = f"the experts {module} have different settings, which is not supported"
        raise ModelError(config.file, f"quantization_config: {problem}")
    return each.pop()


def _as_stored(
    config: Fields, recipe: Recipe, scheme: Scheme | None, found: Quantization, names: Set[str]
) -> Recipe:
    """The recipe of a matrix with this scheme, if the checkpoint has its codes."""
    module = recipe.module.replace(EXPERT, "0")
    if scheme is None:
        excess = next((stem for stem in _STEMS if f"{module}.{stem}" in names), None)
        if excess is None:
            return recipe
        problem = f"excludes {module}, but the checkpoint has the tensor {module}.{excess}"
        raise ModelError(config.file, f"quantization_config ({found.method}) {problem}")
    present = {tensor.name for tensor in tensors(scheme, 1, 1)}
    if names:
        present = {name for name in (*present, "weight_g_idx") if f"{module}.{name}" in names}
    else:
        present -= {"g_idx", *(() if scheme.zero_points else ("qzeros",))}
    stem = next((stem for stem in _STEMS if stem in present), None)
    if stem is None:
        return recipe
    codes = _codes(recipe.module, scheme, present)
    return replace(recipe, tensor=f"{recipe.module}.{stem}", transposed=False, codes=codes)


def _codes(module: str, scheme: Scheme, present: Set[str]) -> Codes:
    """The codes of a module with the tensors `present`."""

    def name(tensor: str, *, needed: bool = False) -> str | None:
        return f"{module}.{tensor}" if needed or tensor in present else None

    rows, cols = scheme.shared
    if scheme.layout == "packed":
        return Codes(
            "packed",
            scheme.bits,
            f"{module}.weight_scale",
            rows,
            cols,
            zeros=f"{module}.weight_zero_point" if scheme.zero_points else None,
            groups=name("weight_g_idx", needed=scheme.act_order),
            shape=name("weight_shape"),
        )
    return Codes(
        cast("CodeLayout", scheme.layout),
        scheme.bits,
        f"{module}.scales",
        rows,
        cols,
        zeros=name("qzeros", needed=scheme.zero_points),
        groups=name("g_idx", needed=scheme.act_order),
    )
