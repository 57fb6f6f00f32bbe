"""Settings of GPTQ, AWQ and AutoRound: integers in groups of inputs, one form for most modules, and
changes to it by module.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from typing import Literal

from penstock.model.fields import Fields
from penstock.model.quantization.patterns import Pattern, checked
from penstock.model.quantization.scheme import MOST_GROUP, Layout, Scheme
from penstock.model.quantization.settings import LINEAR, Quantization, Rule
from penstock.model.sizing import Part

HEAD = "lm_head"
PLAIN_BITS = 16
"""Bits from which AutoRound's settings mean weights that are not quantised."""
_NAME = re.compile(r"[\w.]+")
_GPTQ_FORMATS: dict[str, Layout] = {"gptq": "gptq", "gptq_v2": "gptq_v2"}
_AWQ_VERSIONS = ("gemm",)
_PACKINGS: dict[str, Layout] = {
    "auto_round": "gptq_v2",
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
}
"""AutoRound's formats of GPTQ's and AWQ's layout. Source: auto-round 0.16, inference/backend.py:
those of GPTQ_FORMAT_NO_ZP store zero points as they are.
"""


def gptq(fields: Fields, _dtype: str) -> Quantization:
    """Settings of GPTQ. `dynamic` maps expressions to changes, or excludes what they match (`-:`);
    the first one that matches decides. Source: gptqmodel 7.7 and vLLM 0.33, get_dynamic_override.
    """
    form = fields.text("checkpoint_format", default=fields.text("format", default="gptq"))
    if form not in _GPTQ_FORMATS:
        raise fields.refuse("checkpoint_format", " ".join(_GPTQ_FORMATS))
    if fields.text("pack_dtype", default="int32") != "int32":
        raise fields.refuse("pack_dtype", "int32")
    most = _integers(fields, _GPTQ_FORMATS[form], "bits", "group_size", symmetric="sym")
    most = replace(most, act_order=fields.flag("desc_act", default=False) and _grouped(most))
    rules = [] if fields.flag("lm_head", default=False) else [_head(None)]
    if (changes := fields.within("dynamic")) is not None:
        rules += [_change(fields, changes, text, most) for text in changes.names()]
    rules += [] if rules[:1] == [_head(None)] else [_head(most)]
    blocks = _blocks(fields, "modules_in_block_to_quantize")
    rules += [Rule(Pattern("path", text, "modules_in_block_to_quantize"), most) for text in blocks]
    return Quantization("GPTQ", tuple(rules), {} if blocks else _everywhere(most))


def awq(fields: Fields, _dtype: str) -> Quantization:
    """Settings of AWQ: a module is excluded if its name contains an entry of
    `modules_to_not_convert`.
    """
    bits = "w_bit" if fields.get("bits") is None else "bits"
    group = "q_group_size" if fields.get("group_size") is None else "group_size"
    version = fields.text("version", default="gemm").lower()
    if version not in _AWQ_VERSIONS:
        raise fields.refuse("version", " ".join(_AWQ_VERSIONS))
    most = _integers(fields, "awq", bits, group)
    most = replace(most, zero_points=fields.flag("zero_point", default=True))
    key = "modules_to_not_convert"
    kept = (Rule(Pattern("contains", text, key), None) for text in fields.texts(key))
    return Quantization("AWQ", (_head(None), *kept), _everywhere(most))


def auto_round(fields: Fields, _dtype: str) -> Quantization:
    """Settings of AutoRound. `extra_config` maps names, or expressions that are searched for in
    names, to changes; names take precedence. Source: auto-round 0.16, convert_model.py.
    """
    packing = fields.text("packing_format", default="auto_round:auto_gptq")
    if packing not in _PACKINGS:
        raise fields.refuse("packing_format", " ".join(_PACKINGS))
    if fields.text("data_type", default="int") != "int":
        raise fields.refuse("data_type", "int")
    most = _integers(fields, _PACKINGS[packing], "bits", "group_size", symmetric="sym")
    rules: list[Rule] = []
    if (changes := fields.within("extra_config")) is not None:
        # Names precede expressions; sorting keeps the order within both.
        texts = sorted(changes.names(), key=lambda text: not _NAME.fullmatch(text))
        rules = [_change(fields, changes, text, most, "search") for text in texts]
    rules.append(_head(most if fields.get("quant_lm_head") is True else None))
    key = "block_name_to_quantize"
    listed = fields.get(key)
    blocks = listed.split(",") if isinstance(listed, str) else _blocks(fields, key)
    rules += [Rule(Pattern("path", text.strip(), key), most) for text in blocks]
    return Quantization("AutoRound", tuple(rules), {} if blocks else _everywhere(most))


def _change(
    fields: Fields,
    changes: Fields,
    text: str,
    most: Scheme,
    kind: Literal["match", "search"] = "match",
) -> Rule:
    """The rule of an entry of `dynamic` or `extra_config`."""
    expression = re.sub(r"^[+-]:", "", text) if kind == "match" else text
    pattern = checked(fields, Pattern(kind, expression, text))
    change = changes.within(text)
    if change is None:
        raise changes.refuse(text, "an object")
    if (kind == "match" and text.startswith("-:")) or _stays_plain(change):
        return Rule(pattern, None)
    whole = fields.changed({key: change.get(key) for key, _ in change.items()})
    changed = _integers(whole, most.layout, "bits", "group_size", symmetric="sym")
    ordered = change.flag("desc_act", default=most.act_order)
    return Rule(pattern, replace(changed, act_order=ordered and _grouped(changed)))


def _stays_plain(change: Fields) -> bool:
    bits = change.get("bits")
    return type(bits) is int and bits >= PLAIN_BITS


def _integers(fields: Fields, layout: Layout, bits: str, group: str, symmetric: str = "") -> Scheme:
    widths = (4, 8) if layout == "awq" else range(1, 9)
    width = fields.integer(bits, min(widths), max(widths))
    if width not in widths:
        raise fields.refuse(bits, " ".join(map(str, widths)))
    size = fields.integer(group, -1, MOST_GROUP, default=-1)
    if size == 0:
        raise fields.refuse(group, f"-1, a whole row, or from 1 to {MOST_GROUP}")
    return Scheme(
        layout=layout,
        number="int",
        bits=width,
        shared=(1, None if size < 0 else size),
        zero_points=bool(symmetric) and not fields.flag(symmetric, default=True),
    )


def _grouped(scheme: Scheme) -> bool:
    """Whether rows have several scales. With one, the order of inputs has no effect."""
    return scheme.shared[1] is not None


def _blocks(fields: Fields, key: str) -> tuple[str, ...]:
    """Names from a list, or from lists in a list."""
    listed = fields.get(key)
    if isinstance(listed, list) and all(isinstance(block, list) for block in listed):
        listed = list(chain.from_iterable(listed))
    if listed is not None and not _are_texts(listed):
        raise fields.refuse(key, "names, or lists of names")
    return tuple(listed) if isinstance(listed, list) else ()


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _head(scheme: Scheme | None) -> Rule:
    return Rule(Pattern("path", HEAD, HEAD), scheme)


def _everywhere(scheme: Scheme) -> dict[Part, Scheme]:
    return dict.fromkeys(LINEAR, scheme)
