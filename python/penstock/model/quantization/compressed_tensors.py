"""Settings of compressed-tensors: groups of modules, each with the form of its weights and inputs.

As in the library, a module's own name takes precedence over expressions, and these over classes.
Of several expressions that match, the first in the alphabet decides (match_targets, 0.20).
"""

from __future__ import annotations

from penstock.model.fields import Fields
from penstock.model.quantization.patterns import Pattern, checked
from penstock.model.quantization.scheme import MOST_GROUP, Layout, Scheme, block_sizes
from penstock.model.quantization.settings import LINEAR, Quantization, Rule
from penstock.model.sizing import Part

EXPRESSION = "re:"
_INTEGERS = ("pack-quantized", "int-quantized", "naive-quantized")
_FLOATS = {
    8: ("float-quantized", "naive-quantized", "mxfp8-quantized"),
    4: ("nvfp4-pack-quantized", "mxfp4-pack-quantized"),
}
_OF_GROUPS = ("mixed-precision", "dense")
"""Formats of a whole checkpoint that leave the format to its groups."""
_CLASSES: dict[str, tuple[Part, ...]] = {
    "Linear": (*LINEAR, "head"),
    "Embedding": ("embedding",),
}
_NEVER = ("LayerNorm", "RMSNorm", "Embedding")
"""Classes that may be ignored without an effect on matrix products."""
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_MICROSCALED = 32
"""Inputs that share a power of two in the formats of OCP Microscaling."""


def read(fields: Fields, dtype: str) -> Quantization:
    _refuse_sparsity(fields)
    groups = fields.within("config_groups")
    if groups is None or not groups.holds_objects():
        raise fields.refuse("config_groups", "an object with groups of modules")
    targets: dict[str, Scheme] = {}
    for name in groups.names():
        group = groups.within(name)
        weights = group.within("weights") if group is not None else None
        if group is None or weights is None:
            continue  # This group quantises only activations.
        scheme = _scheme(fields, group, weights, dtype)
        for target in group.texts("targets") or ("Linear",):
            targets[target] = scheme
    if not targets:
        raise fields.refuse("config_groups", "a group with weights")
    return _resolved(fields, targets)


def _resolved(fields: Fields, targets: dict[str, Scheme]) -> Quantization:
    ignored: list[Rule] = []
    parts: dict[Part, Scheme] = {}
    for text in fields.texts("ignore"):
        if text == "Linear":
            raise fields.refuse("ignore", "some modules of the class Linear, not all")
        if text not in _NEVER:
            ignored.append(Rule(_pattern(fields, text, "ignore"), None))
    named: list[Rule] = []
    expressions: list[Rule] = []
    for target, scheme in targets.items():
        for part in _CLASSES.get(target, ()):
            parts[part] = scheme
        if target in _CLASSES:
            continue
        rule = Rule(_pattern(fields, target, "config_groups"), scheme)
        (named if rule.pattern.kind == "name" else expressions).append(rule)
    expressions.sort(key=lambda rule: rule.pattern.text)
    rules = (*ignored, *named, *expressions)
    return Quantization("compressed-tensors", rules, parts)


def _pattern(fields: Fields, text: str, key: str) -> Pattern:
    if text.startswith(EXPRESSION):
        return checked(fields, Pattern("match", text.removeprefix(EXPRESSION), key))
    if text.isidentifier() and text[0].isupper():
        raise fields.refuse(key, f"modules, and the classes {' '.join(_CLASSES)} (not {text})")
    return Pattern("name", text, key)


def _scheme(fields: Fields, group: Fields, weights: Fields, dtype: str) -> Scheme:
    number = weights.text("type", default="int")
    bits = weights.integer("num_bits", 1, 8, default=8)
    if number not in ("int", "float") or (number == "float" and bits not in _FLOATS):
        key = "num_bits" if number == "float" else "type"
        raise weights.refuse(key, "integers, and floats of 4 or 8 bits")
    symmetric = weights.flag("symmetric", default=True)
    inputs = group.within("input_activations")
    shared = _shared(weights)
    form = _format(fields, group, number, bits, shared, has_inputs=inputs is not None)
    layout, scale = _layout(form, weights, dtype)
    return Scheme(
        layout=layout,
        number="int" if number == "int" else "float",
        bits=bits,
        shared=shared,
        scale=scale,
        zero_points=number == "int" and not symmetric,
        inputs="" if inputs is None else "static" if not inputs.get("dynamic") else "dynamic",
        act_order=_is_ordered(weights),
    )


def _shared(weights: Fields) -> tuple[int | None, int | None]:
    size = weights.get("group_size")
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = weights.text("strategy", default=inferred)
    match strategy:
        case "tensor":
            return None, None
        case "channel":
            return 1, None
        case "group" | "tensor_group":
            return 1, weights.integer("group_size", 1, MOST_GROUP)
        case "block":
            return block_sizes(weights, "block_structure")
        case _:
            raise weights.refuse("strategy", "tensor channel group tensor_group block")


def _format(
    fields: Fields,
    group: Fields,
    number: str,
    bits: int,
    shared: tuple[int | None, int | None],
    *,
    has_inputs: bool,
) -> str:
    """The format of a group: its own, that of the checkpoint, or the one that the library's
    compressor infers.
    """
    known = _INTEGERS if number == "int" else _FLOATS[bits]
    for source in (group, fields):
        found = source.get("format")
        if found is None or (source is fields and found in _OF_GROUPS):
            continue
        if found not in known:
            raise source.refuse("format", " ".join(known))
        return str(found)
    if number == "int":
        return "int-quantized" if bits == 8 and has_inputs else "pack-quantized"
    small = shared[1] == _MICROSCALED
    if bits == 4:
        return "mxfp4-pack-quantized" if small else "nvfp4-pack-quantized"
    return "mxfp8-quantized" if small else "float-quantized"


def _layout(form: str, weights: Fields, dtype: str) -> tuple[Layout, str]:
    """The layout of a format, and the type of its scales."""
    own = str(weights.get("scale_dtype") or dtype).removeprefix("torch.")
    scale = _DTYPES.get(own, "BF16")
    match form:
        case "pack-quantized":
            return "packed", scale
        case "nvfp4-pack-quantized":
            return "nvfp4", "F8_E4M3"
        case "mxfp4-pack-quantized":
            return "mxfp4", "U8"
        case "mxfp8-quantized":
            return "plain", "U8"
        case _:
            return "plain", scale


def _is_ordered(weights: Fields) -> bool:
    """Whether groups follow the order of activations. `weight` and `static` reorder before groups
    are formed, which a reader does not see.
    """
    order = weights.get("actorder")
    if order not in (None, False, True, "group", "dynamic", "weight", "static"):
        raise weights.refuse("actorder", "group weight")
    return order in (True, "group", "dynamic")


def _refuse_sparsity(fields: Fields) -> None:
    sparsity = fields.within("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        raise sparsity.refuse("format", "dense")
