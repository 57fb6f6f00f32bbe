"""Reads the parameters of rotary position embedding (rope), whose keys vary between checkpoints."""

import math

from penstock.model.fields import Fields
from penstock.model.spec import (
    FactorsScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

DEFAULT_THETA = 10_000.0
LARGEST_THETA = 1e12
LARGEST_FACTOR = 1e6
LONGEST = 1 << 26
KINDS = "default linear llama3 yarn"
LONGROPE = ("longrope", "su")


def from_hf(config: Fields, *, head_dim: int | None = None, layer_type: str | None = None) -> Rope:
    """Rope of a config.json: `rope_parameters` with `rope_theta` inside (transformers 5), or
    `rope_theta` beside `rope_scaling`.

    Only with `head_dim` may part of a head be rotated, and the scaling be LongRoPE. With
    `layer_type`, the parameters of that type of layer are returned, if there are any.
    """
    outer_theta = config.number("rope_theta", 1.0, LARGEST_THETA, default=DEFAULT_THETA)
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    parameters = config.within(key)
    if parameters is not None and layer_type is not None and parameters.holds_objects():
        parameters = parameters.within(layer_type)
    dims = _dims(config, parameters, head_dim)
    if parameters is None:
        return Rope(outer_theta, dims=dims)
    theta = parameters.number("rope_theta", 1.0, LARGEST_THETA, default=outer_theta)
    return Rope(theta, _hf_scaling(config, key, parameters, dims or head_dim), dims)


def _dims(config: Fields, parameters: Fields | None, head_dim: int | None) -> int | None:
    """Number of rotated dimensions of a head; None for all."""
    for fields in (config, parameters):
        if fields is None or fields.get("partial_rotary_factor") in (None, 1, 1.0):
            continue
        if head_dim is None:
            raise fields.refuse("partial_rotary_factor", "rope over the whole head, 1.0")
        dims = int(head_dim * fields.number("partial_rotary_factor", 1e-6, 1.0))
        if dims < 2 or dims % 2:
            raise fields.refuse("partial_rotary_factor", f"pairs within a head of {head_dim}")
        return dims
    return None


def _hf_scaling(
    config: Fields, outer_key: str, parameters: Fields, rotated: int | None
) -> RopeScaling | None:
    if parameters.holds_objects():
        raise config.refuse(outer_key, "one set of rope parameters for all layers")
    # "type" is the spelling before transformers 4.43; files of the transition have both.
    key = "rope_type" if parameters.get("rope_type") is not None else "type"
    kind = parameters.get(key)
    if kind is None or kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(_factor(parameters, "factor"))
    if kind == "llama3":
        return _llama3(parameters)
    # Older files of Phi-3 call their scaling "yarn" or "su".
    if rotated is not None and (kind in LONGROPE or parameters.get("short_factor") is not None):
        return _longrope(config, parameters, rotated // 2)
    if kind == "yarn":
        return _yarn(config, parameters)
    raise parameters.refuse(key, KINDS)


def _llama3(parameters: Fields) -> Llama3Scaling:
    low = parameters.number("low_freq_factor", 1e-6, LARGEST_FACTOR)
    high = parameters.number("high_freq_factor", 1e-6, LARGEST_FACTOR)
    if high < low:
        raise parameters.refuse("high_freq_factor", f"at least low_freq_factor, {low:g}")
    original = parameters.integer("original_max_position_embeddings", 1, LONGEST)
    return Llama3Scaling(_factor(parameters, "factor"), low, high, original)


def _yarn(config: Fields, parameters: Fields) -> YarnScaling:
    longest = config.integer("max_position_embeddings", 1, LONGEST)
    original = _original(config, parameters, longest)
    factor = parameters.number("factor", 1e-6, LARGEST_FACTOR, default=longest / original)
    scales = [parameters.get(key) for key in ("mscale", "mscale_all_dim")]
    if parameters.get("attention_factor") is not None:
        attention = parameters.number("attention_factor", 1e-6, LARGEST_FACTOR)
    elif all(scales):
        numerator, denominator = (
            _magnitude(factor, parameters.number(key, 0.0, LARGEST_FACTOR))
            for key in ("mscale", "mscale_all_dim")
        )
        attention = numerator / denominator
    else:
        attention = _magnitude(factor)
    return YarnScaling(
        factor,
        original,
        beta_fast=parameters.number("beta_fast", 1e-6, LARGEST_FACTOR, default=32.0),
        beta_slow=parameters.number("beta_slow", 1e-6, LARGEST_FACTOR, default=1.0),
        attention_factor=attention,
        fractional=not parameters.flag("truncate", default=True),
    )


def softmax_factor(config: Fields) -> float:
    """Additional factor of the attention scores, which DeepSeek combines with YaRN; 1
    without it.
    """
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    parameters = config.within(key)
    if parameters is None or not parameters.get("mscale_all_dim"):
        return 1.0
    scale = parameters.number("mscale_all_dim", 0.0, LARGEST_FACTOR)
    scaling = from_hf(config).scaling
    if not isinstance(scaling, YarnScaling):
        raise parameters.refuse("mscale_all_dim", "YaRN with it")
    return _magnitude(scaling.factor, scale) ** 2


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """Factor by which YaRN multiplies cosines and sines."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _original(config: Fields, parameters: Fields, default: int) -> int:
    """Context length before scaling. Old files have it outside the rope parameters."""
    key = "original_max_position_embeddings"
    fields = parameters if parameters.get(key) is not None else config
    return fields.integer(key, 1, LONGEST, default=default)


def _longrope(config: Fields, parameters: Fields, pairs: int) -> LongropeScaling:
    """LongRoPE with the divisors of a config.json: those for long sequences if the served length
    exceeds the original context, else those for short sequences.

    transformers switches when a sequence outgrows the original context, and recomputes all its
    keys. Cached keys would then mix both kinds, so the choice is made once, as in vLLM.
    """
    longest = config.integer("max_position_embeddings", 1, LONGEST)
    original = _original(config, parameters, longest)
    key = "long_factor" if (config.served or longest) > original else "short_factor"
    divisors = parameters.get(key)
    if not isinstance(divisors, list) or len(divisors) != pairs or not all(map(_divides, divisors)):
        raise parameters.refuse(key, f"{pairs} numbers over 0, one for each pair")
    if parameters.get("attention_factor") is not None:
        attention = parameters.number("attention_factor", 1e-6, LARGEST_FACTOR)
    else:
        factor = parameters.number("factor", 1e-6, LARGEST_FACTOR, default=longest / original)
        attention = longrope_attention(factor, original)
    return LongropeScaling(tuple(map(float, divisors)), attention)


def longrope_attention(factor: float, original: int) -> float:
    """Factor by which LongRoPE multiplies cosines and sines."""
    if factor <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original))


def _divides(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < LARGEST_FACTOR  # type: ignore[operator]


def from_gguf(
    fields: Fields, *, has_factors: bool, dims: int | None = None, latent: bool = False
) -> Rope:
    """Rope of a GGUF file. GGUF has keys for linear scaling and YaRN; Llama 3's scaling is
    precomputed as a tensor of divisors. `latent`: for latent attention, where YaRN may have a
    factor for the scores (`gguf_softmax_factor`).
    """
    theta = fields.number("rope.freq_base", 1.0, LARGEST_THETA, default=DEFAULT_THETA)
    kind = fields.text("rope.scaling.type", default="none")
    factor = 1.0
    if kind == "linear":
        factor = _factor(fields, "rope.scaling.factor")
    elif kind == "yarn" and not has_factors:
        return Rope(theta, _gguf_yarn(fields, latent=latent), dims)
    elif kind != "none":
        raise fields.refuse("rope.scaling.type", "none linear yarn")
    elif fields.get("rope.scale_linear") is not None:
        factor = _factor(fields, "rope.scale_linear")
    if not has_factors:
        return Rope(theta, LinearScaling(factor) if factor != 1.0 else None, dims)
    if factor != 1.0:
        raise fields.refuse("rope.scaling.factor", "1 in files that also have rope factors")
    return Rope(theta, FactorsScaling(), dims)


LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
PER_SCALE = 0.1
"""Ratio of the value at LOG_MULTIPLIER to `mscale_all_dim` in config.json."""


def gguf_softmax_factor(fields: Fields, rope: Rope) -> float:
    """`softmax_factor` of a GGUF file."""
    if not isinstance(rope.scaling, YarnScaling) or not fields.get(LOG_MULTIPLIER):
        return 1.0
    scale = fields.number(LOG_MULTIPLIER, 0.0, LARGEST_FACTOR) / PER_SCALE
    return _magnitude(rope.scaling.factor, scale) ** 2


def _gguf_yarn(fields: Fields, *, latent: bool) -> YarnScaling:
    """YaRN of a GGUF file. llama.cpp multiplies YaRN's own factor of cosines and sines by the
    file's factor. For DeepSeek's files it is 1, because they have the same scale for positions and
    scores.
    """
    scores = fields.get(LOG_MULTIPLIER)
    if scores is not None and not latent:
        raise fields.refuse(LOG_MULTIPLIER, "files without it")
    factor = _factor(fields, "rope.scaling.factor")
    own = fields.number("rope.scaling.attn_factor", 1e-6, LARGEST_FACTOR, default=1.0)
    return YarnScaling(
        factor,
        fields.integer("rope.scaling.original_context_length", 1, LONGEST),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 1e-6, LARGEST_FACTOR, default=32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1e-6, LARGEST_FACTOR, default=1.0),
        attention_factor=own * (1.0 if scores else _magnitude(factor)),
    )


def stretched(rope: Rope | None, longest: int) -> int:
    """The maximum length in tokens, raised from `longest` if a user has added YaRN to config.json
    by hand.
    """
    if rope is None or not isinstance(rope.scaling, YarnScaling):
        return longest
    return max(longest, int(rope.scaling.factor * rope.scaling.original_max_position))


def _factor(fields: Fields, key: str) -> float:
    return fields.number(key, 1e-6, LARGEST_FACTOR)
