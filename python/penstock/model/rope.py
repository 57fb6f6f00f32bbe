"""Rope parameters in their several spellings."""

from penstock.model.fields import Fields
from penstock.model.spec import FactorsScaling, LinearScaling, Llama3Scaling, Rope, RopeScaling

DEFAULT_THETA = 10_000.0
LARGEST_THETA = 1e12
LARGEST_FACTOR = 1e6


def from_hf(config: Fields) -> Rope:
    """`rope_parameters` with `rope_theta` inside (transformers 5), or `rope_theta` beside
    `rope_scaling`.
    """
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise config.refuse("partial_rotary_factor", "rope over the whole head, 1.0")
    outer_theta = config.number("rope_theta", 1.0, LARGEST_THETA, default=DEFAULT_THETA)
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    parameters = config.within(key)
    if parameters is None:
        return Rope(outer_theta)
    theta = parameters.number("rope_theta", 1.0, LARGEST_THETA, default=outer_theta)
    return Rope(theta, _hf_scaling(config, key, parameters))


def _hf_scaling(config: Fields, outer_key: str, parameters: Fields) -> RopeScaling | None:
    if parameters.holds_objects():
        raise config.refuse(outer_key, "one set of rope parameters for all layers")
    # "type" is the spelling before transformers 4.43; files of that time between carry both.
    key = "rope_type" if parameters.get("rope_type") is not None else "type"
    kind = parameters.get(key)
    if parameters.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise parameters.refuse("partial_rotary_factor", "rope over the whole head, 1.0")
    if kind is None or kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(_factor(parameters, "factor"))
    if kind == "llama3":
        return _llama3(parameters)
    raise parameters.refuse(key, "default linear llama3")


def _llama3(parameters: Fields) -> Llama3Scaling:
    low = parameters.number("low_freq_factor", 1e-6, LARGEST_FACTOR)
    high = parameters.number("high_freq_factor", 1e-6, LARGEST_FACTOR)
    if high <= low:
        raise parameters.refuse("high_freq_factor", f"a number above low_freq_factor, {low:g}")
    original = parameters.integer("original_max_position_embeddings", 1, 1 << 26)
    return Llama3Scaling(_factor(parameters, "factor"), low, high, original)


def from_gguf(fields: Fields, *, has_factors: bool) -> Rope:
    """GGUF knows linear scaling as keys; Llama 3's is precomputed into a tensor of divisors."""
    theta = fields.number("rope.freq_base", 1.0, LARGEST_THETA, default=DEFAULT_THETA)
    kind = fields.text("rope.scaling.type", default="none")
    factor = 1.0
    if kind == "linear":
        factor = _factor(fields, "rope.scaling.factor")
    elif kind != "none":
        raise fields.refuse("rope.scaling.type", "none linear")
    elif fields.get("rope.scale_linear") is not None:
        factor = _factor(fields, "rope.scale_linear")
    if not has_factors:
        return Rope(theta, LinearScaling(factor) if factor != 1.0 else None)
    if factor != 1.0:
        raise fields.refuse("rope.scaling.factor", "1 in files that also have rope factors")
    return Rope(theta, FactorsScaling())


def _factor(fields: Fields, key: str) -> float:
    return fields.number(key, 1e-6, LARGEST_FACTOR)
