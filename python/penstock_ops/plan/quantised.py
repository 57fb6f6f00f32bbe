"""Finds the number type of each weight matrix in a checkpoint's quantisation settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from penstock.core import PenstockError, shortened
from penstock_ops.plan.modules import Key, Modules

LINEAR = ("attention", "dense", "experts", "shared")
"""Parts of a model that quantisation tools convert unless their settings exclude them."""
_KEPT = (
    "ignore",
    "exclude_modules",
    "modules_to_not_convert",
    "ignored_layers",
    "llm_int8_skip_modules",
)
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
}
"""Names of ModelOpt's algorithms, with the type of the weights for each."""
_MIXED = "MIXED_PRECISION"
REMEDY = "name what most weights are with --weights of penstock plan"


@dataclass(slots=True)
class Scheme:
    """Types of matrices by name. A list of unquantised matrices takes precedence, then the first
    matching rule, then the type `most`.
    """

    most: str = ""
    """Type of matrices that no rule names; empty if these are not quantised."""
    parts: tuple[str, ...] = LINEAR
    """Parts of the model to which `most` applies."""
    rules: list[tuple[str, str]] = field(default_factory=list)
    """(name or pattern, type); an empty type means unquantised."""
    other: dict[str, float] = field(default_factory=dict)
    """Bytes of one weight, for types that are not in `weights.BYTES`."""

    def add(self, kind: tuple[str, float | None]) -> str:
        name, size = kind
        if size is not None:
            self.other[name] = size
        return name


def kinds(
    settings: Mapping[str, object], modules: Modules
) -> tuple[dict[Key, str], dict[str, float]]:
    """Type of each quantised matrix, and bytes of one weight for types that are not in
    `weights.BYTES`. PenstockError names settings that are unknown, or that match no matrix.
    """
    scheme = _scheme(settings)
    kept: set[Key] = set()
    for key in _KEPT:
        for name in _texts(settings.get(key)):
            if not _is_class(name):
                kept |= _matching(modules, key, name)
            elif name not in ("Embedding", "LayerNorm", "RMSNorm"):
                raise _unknown(f"{key}: the class {name}")
    named: dict[Key, str] = {}
    for name, kind in scheme.rules:
        for found in _matching(modules, "quantization_config", name):
            named.setdefault(found, kind)
    types = {
        key: named.get(key, scheme.most if key[1] in scheme.parts else "")
        for key, _ in modules.matrices
        if key not in kept
    }
    return {key: kind for key, kind in types.items() if kind}, scheme.other


def _matching(modules: Modules, where: str, name: str) -> set[Key]:
    try:
        found = modules.matching(name)
    except re.error as error:
        raise PenstockError(
            f"{where}: {shortened(name, 80)!r} is not a supported regular expression: {error}; "
            f"{REMEDY}"
        ) from error
    if found is None:
        raise _unknown(f"{where}: {name!r} names no matrix that is known")
    return found


def _scheme(settings: Mapping[str, object]) -> Scheme:
    method = str(settings.get("quant_method") or "").lower()
    algorithm = str(settings.get("quant_algo") or "").upper()
    if isinstance(settings.get("quantized_layers"), dict):
        return _mixed(settings, "fp8" if method == "fp8" else "")
    if isinstance(settings.get("config_groups"), dict):
        return _grouped(settings)
    if method in ("fp8", "fbgemm_fp8"):
        return Scheme("fp8")
    if method == "mxfp4":
        return Scheme("mxfp4", parts=("experts",))
    if method in ("", "modelopt", "modelopt_fp4") and algorithm in _ALGORITHMS:
        return Scheme(_ALGORITHMS[algorithm])
    if method == "bitsandbytes":
        return _bitsandbytes(settings)
    if method in ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round"):
        return _integers(settings, method)
    raise _unknown(f"quantization_config: {method or algorithm or 'no quant_method'}")


def _grouped(settings: Mapping[str, object]) -> Scheme:
    """The scheme of compressed-tensors settings, and of ModelOpt settings in the same format:
    groups, each with a type and the matrices that have it.
    """
    scheme = Scheme()
    groups = cast("Mapping[str, object]", settings["config_groups"])
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(group, dict) or not isinstance(weights, dict):
            continue  # This group quantises only activations.
        kind = scheme.add(_numbers(weights))
        for target in _texts(group.get("targets")) or ["Linear"]:
            if target == "Linear":
                scheme.most, scheme.parts = kind, (*LINEAR, "head")
            elif _is_class(target):
                raise _unknown(f"config_groups: the class {target}")
            else:
                scheme.rules.append((target, kind))
    if not scheme.most and not scheme.rules:
        raise _unknown("config_groups: no group has weights")
    return scheme


def _mixed(settings: Mapping[str, object], most: str) -> Scheme:
    """The scheme of ModelOpt settings that list a type for each layer."""
    scheme = Scheme(most)
    layers = cast("Mapping[str, object]", settings["quantized_layers"])
    for name, layer in layers.items():
        algorithm = str(layer.get("quant_algo") if isinstance(layer, dict) else "").upper()
        if algorithm not in _ALGORITHMS:
            raise _unknown(f"quantized_layers: {name}: {algorithm or 'no quant_algo'}")
        scheme.rules.append((name, _ALGORITHMS[algorithm]))
    return scheme


def _integers(settings: Mapping[str, object], method: str) -> Scheme:
    """The scheme of GPTQ, AWQ and AutoRound settings."""
    scheme = Scheme()
    whole = {"bits": settings.get("w_bit"), "group_size": settings.get("q_group_size")}
    whole |= {key: value for key, value in settings.items() if key in ("bits", "group_size")}
    most = scheme.add(_grouped_integers(whole))
    blocks = settings.get("modules_in_block_to_quantize")
    if isinstance(blocks, list) and blocks:
        names = (name for block in blocks for name in (_texts(block) or _texts([block])))
        inside = [(name, most) for name in names]
    else:
        scheme.most, inside = most, []
    if settings.get("lm_head") is True or settings.get("quant_lm_head") is True:
        inside.append(("lm_head", most))
    changes = settings.get("dynamic") if method != "auto-round" else settings.get("extra_config")
    for name, change in changes.items() if isinstance(changes, dict) else ():
        if not isinstance(change, dict):
            raise _unknown(f"quantization_config: {name}")
        if name.startswith("-:"):
            scheme.rules.append((f"re:{name[2:]}", ""))
            continue
        kind = scheme.add(_grouped_integers({**whole, **change}))
        pattern = name if method == "auto-round" else f"re:{name.removeprefix('+:')}"
        scheme.rules.append((pattern, "" if kind.startswith("int16") else kind))
    scheme.rules += inside
    return scheme


def _bitsandbytes(settings: Mapping[str, object]) -> Scheme:
    scheme = Scheme()
    if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
        doubled = settings.get("bnb_4bit_use_double_quant") is True
        scale = 1 / 64 + 4 / (64 * 256) if doubled else 4 / 64
        scheme.most = scheme.add(("nf4", 0.5 + scale))
    else:
        scheme.most = scheme.add(("int8 by channel", 1.0))
    return scheme


def _numbers(weights: Mapping[str, object]) -> tuple[str, float | None]:
    """Name of a type in compressed-tensors settings, and bytes of one weight (None if
    `weights.BYTES` has the type).
    """
    bits, group = weights.get("num_bits"), weights.get("group_size")
    if weights.get("type") == "float":
        found = {"8/32": "mxfp8", "4/16": "nvfp4", "4/32": "mxfp4"}
        kind = found.get(f"{bits}/{group}", "fp8" if bits == 8 else "")
        if not kind:
            raise _unknown(f"config_groups: floats of {bits} bits in groups of {group}")
        return kind, None
    symmetric = weights.get("symmetric") is not False
    return _grouped_integers({"bits": bits, "group_size": group, "sym": symmetric})


def _grouped_integers(settings: Mapping[str, object]) -> tuple[str, float]:
    """Name of an integer type and bytes of one weight. Each group of weights has a 16-bit scale,
    and a zero point unless `sym` is true.
    """
    bits, group = settings.get("bits"), settings.get("group_size")
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        raise _unknown(f"quantization_config: bits = {bits}")
    if isinstance(group, bool) or not isinstance(group, int) or group <= 0:
        return f"int{bits} by channel", bits / 8
    zero = 0.0 if settings.get("sym") is True else bits / 8
    return f"int{bits}/{group}", bits / 8 + (2 + zero) / group


def kv_type(settings: Mapping[str, object]) -> str:
    """The KV type that a checkpoint's settings request: `fp8`, or empty."""
    scheme = settings.get("kv_cache_scheme")
    algorithm = settings.get("kv_cache_quant_algo") or (scheme if isinstance(scheme, str) else "")
    if str(algorithm).upper() == "FP8":
        return "fp8"
    if isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
        return "fp8"
    return ""


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _is_class(name: str) -> bool:
    return re.fullmatch(r"[A-Z]\w*", name) is not None


def _unknown(what: str) -> PenstockError:
    return PenstockError(f"{what}: the size of these weights is not known here; {REMEDY}")
