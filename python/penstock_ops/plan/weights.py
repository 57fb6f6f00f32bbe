"""Number types of a model's weights by part of the model, as its checkpoint states or the user
requests, and their bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core import InvalidValueError
from penstock.model.sizing import Matrix, Part, whole, whole_counted
from penstock.model.spec import DecoderSpec
from penstock_ops.plan.modules import Key, Modules
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
"""Bytes of one weight of each type, including its share of the scales. fp8 has one scale for 128 x
128 weights, mxfp8 and mxfp4 one byte for 32, nvfp4 one byte for 16. int8 and int4 are packed as in
the native decoder, int4 with an additional minimum.
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
    """The number type of each part of a model, and exceptions for single matrices. A type is a key
    of BYTES or of `other`.
    """

    name: str
    """Type of most of the weights."""
    parts: Mapping[Part, str]
    other: Mapping[str, float]
    """Bytes of one weight, for types that are not in BYTES."""
    exceptions: Mapping[Key, str] = field(default_factory=dict)
    """Type of each matrix that differs from its part."""

    @property
    def by_layer(self) -> bool:
        """Whether equal matrices of different layers may have different types."""
        return bool(self.exceptions)

    def kind(self, matrix: Matrix) -> str:
        """The type of a matrix's weights."""
        key = (matrix.layer, matrix.part, matrix.role)
        return self.exceptions.get(key, self.parts[matrix.part])

    def size(self, kind: str) -> float:
        """Bytes of one weight of type `kind`."""
        return self.other[kind] if kind in self.other else BYTES[kind]

    def bytes(self, matrices: Iterable[Matrix]) -> int:
        return round(sum(matrix.numbers * self.size(self.kind(matrix)) for matrix in matrices))

    def model_bytes(self, spec: DecoderSpec) -> int:
        """Bytes of all weights of a model."""
        if self.by_layer:
            return self.bytes(whole(spec))
        return round(
            sum(
                matrix.numbers * count * self.size(self.kind(matrix))
                for matrix, count in whole_counted(spec)
            )
        )


def uniform(kind: str, others: str = "bf16") -> WeightTypes:
    """Types with `kind` for the matrix products of layers, and `others` for all other parts."""
    if kind not in BYTES:
        raise InvalidValueError("--weights", kind, f"one of {', '.join(BYTES)}")
    rest = kind if kind in ("f32", "bf16") else others
    return WeightTypes(kind, {part: kind if part in LINEAR else rest for part in PARTS}, {})


def as_packed(types: WeightTypes) -> WeightTypes:
    """The types that the native decoder uses in memory by default: FP8 becomes 8-bit integers with
    a scale for 32 weights, floats become bf16, routers and vectors f32.
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
    """The types that a checkpoint states in `config.json`, or in `hf_quant_config.json`
    (`quantised`), which takes precedence. PenstockError names unknown quantisation settings.
    """
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    plain = uniform("f32" if dtype == "float32" else "bf16")
    found = settings(config, quantised)
    if not found:
        return plain
    modules = Modules(spec)
    types, other = kinds(found, modules)
    numbers: dict[Part, Counter[str]] = {part: Counter() for part in PARTS}
    for key, matrix in modules.matrices:
        numbers[matrix.part][types.get(key, plain.name)] += matrix.numbers
    parts: dict[Part, str] = {
        part: counts.most_common(1)[0][0] if counts else plain.name
        for part, counts in numbers.items()
    }
    exceptions = {
        key: types.get(key, plain.name)
        for key, matrix in modules.matrices
        if types.get(key, plain.name) != parts[matrix.part]
    }
    total: Counter[str] = sum((numbers[part] for part in PARTS if part in LINEAR), Counter())
    return WeightTypes(total.most_common(1)[0][0], parts, other, exceptions)


def settings(config: Mapping[str, object], quantised: Mapping[str, object]) -> Mapping[str, object]:
    """The quantisation settings of a checkpoint; empty if it has none."""
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
