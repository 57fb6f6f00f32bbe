"""Bytes that a weight takes, by part of the model: from what a checkpoint says of itself, or as
asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.core import InvalidValueError, PenstockError
from penstock.model.sizing import Matrix, Part

BYTES = {
    "f32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0 + 4 / 128**2,
    "int8": 1.0 + 2 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int4": 0.5 + 4 / 32,
}
"""Bytes of a weight with its share of the scales: fp8 has one for 128 x 128, mxfp4 one byte for 32,
nvfp4 one for 16; int8 and int4 as the native decoder packs them, int4 with a minimum beside it."""
KV_BYTES = {"bf16": 2, "fp8": 1, "f32": 4}
PARTS: tuple[Part, ...] = (
    "embedding",
    "head",
    "attention",
    "dense",
    "experts",
    "shared",
    "router",
    "vectors",
)
LINEAR: tuple[Part, ...] = ("attention", "dense", "experts", "shared")
"""Parts that quantisers change unless a list keeps them as they are."""
_MARKS: dict[str, tuple[Part, ...]] = {
    "lm_head": ("head",),
    "embed_tokens": ("embedding",),
    "self_attn": ("attention",),
    "linear_attn": ("attention",),
    "attention": ("attention",),
    "shared_expert": ("shared",),
    "mlp.gate": ("router",),
    "router": ("router",),
    "feed_forward": ("dense",),
}
"""What a name in a list of modules that stay as they are stands for."""


@dataclass(frozen=True, slots=True)
class WeightTypes:
    """A type for each part: keys of `BYTES`, or bytes of a weight."""

    name: str
    """What most weights are."""
    parts: Mapping[Part, str]
    other: Mapping[str, float]
    """Bytes of types that `BYTES` lacks."""

    def size(self, part: Part) -> float:
        """Bytes of one weight."""
        kind = self.parts[part]
        return self.other[kind] if kind in self.other else BYTES[kind]

    def bytes(self, matrices: Iterable[Matrix]) -> int:
        return round(sum(matrix.numbers * self.size(matrix.part) for matrix in matrices))


def uniform(kind: str, others: str = "bf16") -> WeightTypes:
    """One type for all products of layers; embedding, head, router and vectors stay in `others`."""
    if kind not in BYTES:
        raise InvalidValueError("--weights", kind, f"one of {', '.join(BYTES)}")
    rest = kind if kind in ("f32", "bf16") else others
    return WeightTypes(kind, {part: kind if part in LINEAR else rest for part in PARTS}, {})


def as_packed(types: WeightTypes) -> WeightTypes:
    """As the native decoder holds them by default: FP8 as 8 bits with a scale for 32, floats as
    bf16, routers and vectors in f32.
    """
    held = {"fp8": "int8", "f32": "bf16"}
    parts = {part: held.get(kind, kind) for part, kind in types.parts.items()}
    return WeightTypes(
        held.get(types.name, types.name), {**parts, "router": "f32", "vectors": "f32"}, types.other
    )


def stored(config: Mapping[str, object], quantised: Mapping[str, object]) -> WeightTypes:
    """As `config.json` says, or `hf_quant_config.json` (`quantised`), which overrides it."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    plain = uniform("f32" if dtype == "float32" else "bf16")
    settings = _settings(config, quantised)
    if not settings:
        return plain
    kind, other = _kind(settings)
    if not kind:
        raise PenstockError(
            "the quantization of this checkpoint is of a kind that is not known here: name what "
            "most weights are with --weights"
        )
    skipped = _skipped(settings)
    parts = {part: kind if part in LINEAR and part not in skipped else plain.name for part in PARTS}
    if str(settings.get("quant_method")) == "mxfp4":
        parts = {part: kind if part == "experts" else plain.name for part in PARTS}
    return WeightTypes(kind, parts, other)


def _settings(
    config: Mapping[str, object], quantised: Mapping[str, object]
) -> Mapping[str, object]:
    inner = quantised.get("quantization")
    if isinstance(inner, dict):
        return inner
    found = config.get("quantization_config")
    return found if isinstance(found, dict) else {}


def _kind(settings: Mapping[str, object]) -> tuple[str, dict[str, float]]:
    """The type's name, and its bytes where `BYTES` lacks it."""
    method = str(settings.get("quant_method") or "").lower()
    algorithm = str(settings.get("moe_quant_algo") or settings.get("quant_algo") or "").upper()
    if "NVFP4" in algorithm:
        return "nvfp4", {}
    if "FP8" in algorithm or method in ("fp8", "fbgemm_fp8"):
        return "fp8", {}
    if method == "mxfp4":
        return "mxfp4", {}
    bits, group = settings.get("bits"), settings.get("group_size")
    for scheme in _schemes(settings):
        bits, group = scheme.get("num_bits"), scheme.get("group_size")
        if scheme.get("type") == "float" and bits == 8:
            return "fp8", {}
    if not isinstance(bits, int):
        return "", {}
    each = group if isinstance(group, int) and group > 0 else 1 << 20
    zero = 0.0 if settings.get("format") == "pack-quantized" else bits / 8 / each
    name = f"int{bits}/{group}"
    return name, {name: bits / 8 + 2 / each + zero}


def _schemes(settings: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    groups = settings.get("config_groups")
    each = groups.values() if isinstance(groups, dict) else ()
    found = (group.get("weights") for group in each if isinstance(group, dict))
    return [scheme for scheme in found if isinstance(scheme, dict)]


def _skipped(settings: Mapping[str, object]) -> set[Part]:
    """Parts that most layers keep unquantised: a part is named in lists layer by layer."""
    found: set[Part] = set()
    for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
        listed = settings.get(key)
        names = [str(name) for name in listed] if isinstance(listed, list) else []
        for mark, parts in _MARKS.items():
            hits = [name for name in names if mark in name and _is_whole(name)]
            if len(hits) > 8 or any(re.search(r"[*]|^re:|^[^0-9]*$", hit) for hit in hits):
                found.update(parts)
    return found


def _is_whole(name: str) -> bool:
    """Not an index or a norm inside attention."""
    return not re.search(r"indexer|norm|weights_proj|kv_b_proj|conv1d|in_proj_[ab]$|vision", name)
