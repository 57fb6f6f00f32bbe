"""Number types of a model's weights by part of the model, as its checkpoint states or the user
requests, and their bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.core import InvalidValueError
from penstock.model.quantization import LINEAR, Quantization, Scheme, cpu_form
from penstock.model.sizing import Matrix, Part, whole, whole_counted
from penstock.model.spec import DecoderSpec, WeightRecipes
from penstock_ops.plan.modules import Key, Modules
from penstock_ops.plan.quantised import schemes, stored_shape

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
    of `schemes`, of `other` or of BYTES, in this order.
    """

    name: str
    """Type of most of the weights."""
    parts: Mapping[Part, str]
    other: Mapping[str, float] = field(default_factory=dict)
    """Bytes of one weight, for types whose size does not depend on a matrix's shape."""
    exceptions: Mapping[Key, str] = field(default_factory=dict)
    """Type of each matrix that differs from its part."""
    schemes: Mapping[str, Scheme] = field(default_factory=dict)
    """How a quantised checkpoint stores the matrices of a type."""
    method: str = ""
    """Name of the quantisation format of the checkpoint; empty without one."""

    @property
    def by_layer(self) -> bool:
        """Whether equal matrices of different layers may have different types."""
        return bool(self.exceptions)

    def kind(self, matrix: Matrix) -> str:
        """The type of a matrix's weights."""
        key = (matrix.layer, matrix.part, matrix.role)
        return self.exceptions.get(key, self.parts[matrix.part])

    def size(self, matrix: Matrix) -> float:
        """Bytes of a matrix, with all its copies."""
        kind = self.kind(matrix)
        if (scheme := self.schemes.get(kind)) is not None:
            return matrix.copies * scheme.bytes(*stored_shape(matrix))
        each = self.other[kind] if kind in self.other else BYTES[kind]
        return matrix.numbers * each

    def bytes(self, matrices: Iterable[Matrix]) -> int:
        return round(sum(self.size(matrix) for matrix in matrices))

    def model_bytes(self, spec: DecoderSpec) -> int:
        """Bytes of all weights of a model."""
        if self.by_layer:
            return self.bytes(whole(spec))
        return round(sum(self.size(matrix) * count for matrix, count in whole_counted(spec)))


def uniform(kind: str, others: str = "bf16") -> WeightTypes:
    """Types with `kind` for the matrix products of layers, and `others` for all other parts."""
    if kind not in BYTES:
        raise InvalidValueError("--weights", kind, f"one of {', '.join(BYTES)}")
    rest = kind if kind in ("f32", "bf16") else others
    return WeightTypes(kind, {part: kind if part in LINEAR else rest for part in PARTS})


S4 = "int4 around 8"
"""The native decoder's format for symmetric integers of 4 bits."""
_OF_FORMS = {"s4": S4, "w8": "int8", "bf16": "bf16"}


def as_packed(types: WeightTypes) -> WeightTypes:
    """The types that the native decoder uses in memory by default: FP8 becomes 8-bit integers with
    a scale for 32 weights, integers keep their codes or become bf16, floats become bf16, routers
    and vectors f32.
    """
    held = {"fp8": "int8", "f32": "bf16"}
    for kind, scheme in types.schemes.items():
        form = cpu_form(scheme)
        if (scheme.number, scheme.bits) == ("float", 8):
            held[kind] = "int8"
        elif form is not None and form.form in _OF_FORMS:
            held[kind] = _OF_FORMS[form.form]
    parts = {part: held.get(kind, kind) for part, kind in types.parts.items()}
    exceptions = {
        key: held.get(kind, kind) for key, kind in types.exceptions.items() if key[1] != "router"
    }
    return replace(
        types,
        name=held.get(types.name, types.name),
        parts={**parts, "router": "f32", "vectors": "f32"},
        exceptions=exceptions,
        other={**types.other, S4: 0.5 + 2 / 32},
    )


def stored(
    dtype: str, found: Quantization | None, spec: DecoderSpec, weights: WeightRecipes | None
) -> WeightTypes:
    """The types of a checkpoint whose config.json states `dtype` and the quantisation `found`.
    `weights` has the names of its tensors, if they are known. PenstockError names settings that
    match no matrix, or that a matrix cannot have.
    """
    plain = uniform("f32" if dtype == "float32" else "bf16")
    if found is None:
        return plain
    modules = Modules(spec, weights)
    of_matrix = schemes(found, modules)
    names = _names(of_matrix.values())
    types = {key: names[scheme] for key, scheme in of_matrix.items()}
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
    return WeightTypes(
        total.most_common(1)[0][0],
        parts,
        exceptions=exceptions,
        schemes={name: scheme for scheme, name in names.items()},
        method=found.method,
    )


def _names(found: Iterable[Scheme]) -> dict[Scheme, str]:
    """A name for each scheme: its own, with a number if others have the same one. The scheme of
    most matrices has none.
    """
    names: dict[Scheme, str] = {}
    used: Counter[str] = Counter()
    for scheme, _ in Counter(found).most_common():
        used[scheme.name] += 1
        count = used[scheme.name]
        names[scheme] = scheme.name if count == 1 else f"{scheme.name} ({count})"
    return names
