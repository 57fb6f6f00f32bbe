"""Bytes of a weight by part of the model, as stated by a checkpoint or as requested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core import InvalidValueError
from penstock.model.sizing import Matrix, Part, whole
from penstock.model.spec import DecoderSpec
from penstock_ops.plan.modules import Key
from penstock_ops.plan.quantised import LINEAR, kinds

BYTES = {
    "f32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0 + 4 / 128**2,
    "int8": 1.0 + 2 / 32,
    "mxfp8": 1.0 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int4": 0.5 + 4 / 32,
}
"""Bytes of a weight including its share of the scales. fp8 has one scale for 128 x 128 weights,
mxfp8 and mxfp4 one byte for 32, nvfp4 one for 16. int8 and int4 are packed as in the native
decoder, int4 with an additional minimum.
"""
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


@dataclass(frozen=True, slots=True)
class WeightTypes:
    """Types of parts, and exceptions for matrices: keys of `BYTES` or of `other`."""

    name: str
    """Type of most weights."""
    parts: Mapping[Part, str]
    other: Mapping[str, float]
    """Bytes of types that are not in `BYTES`."""
    exceptions: Mapping[Key, str] = field(default_factory=dict)
    """Types of matrices that differ from their part."""

    @property
    def by_layer(self) -> bool:
        """Whether a matrix's layer matters."""
        return bool(self.exceptions)

    def kind(self, matrix: Matrix) -> str:
        """Type of a matrix's weights."""
        key = (matrix.layer, matrix.part, matrix.role)
        return self.exceptions.get(key, self.parts[matrix.part])

    def size(self, kind: str) -> float:
        """Bytes of one weight of a type."""
        return self.other[kind] if kind in self.other else BYTES[kind]

    def bytes(self, matrices: Iterable[Matrix]) -> int:
        return round(sum(matrix.numbers * self.size(self.kind(matrix)) for matrix in matrices))


def uniform(kind: str, others: str = "bf16") -> WeightTypes:
    """One type for the matrix products of layers; all other parts keep `others`."""
    if kind not in BYTES:
        raise InvalidValueError("--weights", kind, f"one of {', '.join(BYTES)}")
    rest = kind if kind in ("f32", "bf16") else others
    return WeightTypes(kind, {part: kind if part in LINEAR else rest for part in PARTS}, {})


def as_packed(types: WeightTypes) -> WeightTypes:
    """Types as the native decoder holds them by default: FP8 as 8 bits with a scale for 32 weights,
    floats as bf16, routers and vectors as f32.
    """
    held = {"fp8": "int8", "f32": "bf16"}
    parts = {part: held.get(kind, kind) for part, kind in types.parts.items()}
    exceptions = {
        key: held.get(kind, kind) for key, kind in types.exceptions.items() if key[1] != "router"
    }
    return WeightTypes(
        held.get(types.name, types.name),
        {**parts, "router": "f32", "vectors": "f32"},
        types.other,
        exceptions,
    )


def stored(
    config: Mapping[str, object], quantised: Mapping[str, object], spec: DecoderSpec
) -> WeightTypes:
    """Types from `config.json`, or from `hf_quant_config.json` (`quantised`), which takes
    precedence. PenstockError names unknown quantisation settings.
    """
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    plain = uniform("f32" if dtype == "float32" else "bf16")
    found = settings(config, quantised)
    if not found:
        return plain
    types, other = kinds(found, spec)
    numbers: dict[Part, Counter[str]] = {part: Counter() for part in PARTS}
    for matrix in whole(spec):
        key = (matrix.layer, matrix.part, matrix.role)
        numbers[matrix.part][types.get(key, plain.name)] += matrix.numbers
    parts: dict[Part, str] = {
        part: counts.most_common(1)[0][0] if counts else plain.name
        for part, counts in numbers.items()
    }
    exceptions = {
        key: types.get(key, plain.name)
        for matrix in whole(spec)
        for key in ((matrix.layer, matrix.part, matrix.role),)
        if types.get(key, plain.name) != parts[matrix.part]
    }
    total: Counter[str] = sum((numbers[part] for part in PARTS if part in LINEAR), Counter())
    return WeightTypes(total.most_common(1)[0][0], parts, other, exceptions)


def settings(config: Mapping[str, object], quantised: Mapping[str, object]) -> Mapping[str, object]:
    """The quantisation settings; empty if there are none."""
    inner = quantised.get("quantization")
    if isinstance(inner, dict):
        return inner
    if "quant_algo" in quantised:
        return quantised
    for key in ("quantization_config", "compression_config"):
        found = config.get(key)
        if isinstance(found, dict):
            return found
    return {}
