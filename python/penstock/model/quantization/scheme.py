"""How a quantised matrix is stored: its codes, and the weights that share a scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from penstock.model.fields import Fields

Layout = Literal[
    "packed",
    "plain",
    "gptq",
    "gptq_v2",
    "awq",
    "fp8",
    "fbgemm",
    "modelopt",
    "nvfp4",
    "mxfp4",
    "nf4",
    "int8",
]
"""The tensors of a matrix, see `tensors`. `packed`, `plain`: compressed-tensors, codes in words of
32 bits and in bytes. `gptq_v2`: as `gptq`, with zero points that are not stored less 1. `fp8`:
transformers. `nf4`, `int8`: bitsandbytes.
"""
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
"""Bytes of an element, by the name of its type in a safetensors header."""
WORD = 32
"""Bits of the integers that hold codes of less than 8 bits."""
MOST_GROUP = 1 << 20
"""Maximum accepted size of a group or of a side of a block."""
NESTED = 256
"""Number of scales that share a scale in bitsandbytes' doubly quantised checkpoints."""


def block_sizes(fields: Fields, key: str) -> tuple[int, int]:
    """Rows and columns of the blocks that share a scale. Raises ModelError with the key."""
    value = fields.get(key)
    sizes = value if isinstance(value, list) else []
    if len(sizes) != 2 or not all(type(size) is int and 1 <= size <= MOST_GROUP for size in sizes):
        raise fields.refuse(key, f"two sizes, of rows and columns, from 1 to {MOST_GROUP}")
    return sizes[0], sizes[1]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a quantised matrix, as a safetensors header states it."""

    name: str
    """Name after the module's, such as `qweight`."""
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Scheme:
    """The storage of one kind of matrices [outputs, inputs]."""

    layout: Layout
    number: Literal["int", "float"]
    bits: int
    shared: tuple[int | None, int | None]
    """Rows and columns (outputs and inputs) of the weights that share a scale; None: all."""
    scale: str = "F16"
    """Type of the scales, as in ITEM_BYTES."""
    zero_points: bool = False
    """Codes are relative to a zero point for each scale, not to a constant."""
    inputs: Literal["", "dynamic", "static"] = ""
    """Whether the format also quantises the inputs, with scales computed or stored."""
    act_order: bool = False
    """The groups' inputs are not neighbours: a tensor has the group of each input."""
    nested: bool = False
    """The scales are quantised again."""

    @property
    def name(self) -> str:
        """Short name; schemes that differ may have the same one."""
        if self.number == "float":
            return {"nvfp4": "nvfp4", "mxfp4": "mxfp4", "nf4": "nf4"}.get(
                self.layout, "mxfp8" if self.shared == (1, 32) else "fp8"
            )
        columns = self.shared[1]
        return f"int{self.bits}/{columns}" if columns else f"int{self.bits} by channel"

    def describe(self) -> str:
        """Bits, groups and zero points in words."""
        numbers = f"{self.bits}-bit {'integers' if self.number == 'int' else 'floats'}"
        words = [numbers, f"a scale for {_region(self.shared)}"]
        if self.number == "int":
            words.append("zero points" if self.zero_points else "symmetric")
        if self.act_order:
            words.append("groups in the order of activations")
        if self.inputs:
            words.append(f"inputs quantised with {self.inputs} scales")
        return ", ".join(words)

    def misfit(self, outputs: int, inputs: int) -> str:
        """Why a matrix cannot be stored like this; empty if it can."""
        columns = self.shared[1]
        if self.shared[0] == 1 and columns and inputs % columns:
            return f"groups of {columns} do not divide {inputs} inputs"
        packed = {
            "gptq": inputs,
            "gptq_v2": inputs,
            "awq": outputs,
            "nvfp4": inputs,
            "mxfp4": inputs,
        }
        size = packed.get(self.layout, 0) * self.bits
        word = 8 if self.layout in ("nvfp4", "mxfp4") else WORD
        if size % word:
            return f"codes of {self.bits} bits for {size // self.bits} do not fill whole words"
        return ""

    def bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of all tensors of a matrix."""
        return _bytes(self, outputs, inputs)


@lru_cache(maxsize=4096)
def _bytes(scheme: Scheme, outputs: int, inputs: int) -> int:
    return sum(tensor.bytes for tensor in tensors(scheme, outputs, inputs))


def tensors(scheme: Scheme, outputs: int, inputs: int) -> tuple[StoredTensor, ...]:
    """The tensors of a matrix, codes first. Partial groups and words count as whole ones, as in
    the part of a matrix that a rank holds.

    Sources: compressed-tensors 0.20 (compressors), gptqmodel 7.7 and autoawq 0.2.9 (quantised
    linear modules), auto-round 0.16, transformers 5.23 (integrations), vLLM 0.33 (modelopt.py),
    bitsandbytes (serialised 4-bit parameters).
    """
    n, k = outputs, inputs
    rows, columns = scheme.shared
    groups = _parts(k, columns)
    scales = (_parts(n, rows), groups)
    match scheme.layout:
        case "gptq" | "gptq_v2":
            return (
                StoredTensor("qweight", "I32", (_words(k, scheme.bits), n)),
                StoredTensor("qzeros", "I32", (groups, _words(n, scheme.bits))),
                StoredTensor("scales", scheme.scale, (groups, n)),
                StoredTensor("g_idx", "I32", (k,)),
            )
        case "awq":
            return (
                StoredTensor("qweight", "I32", (k, _words(n, scheme.bits))),
                StoredTensor("qzeros", "I32", (groups, _words(n, scheme.bits))),
                StoredTensor("scales", scheme.scale, (groups, n)),
            )
        case "packed":
            return _packed(scheme, n, k, scales)
        case "nvfp4" | "mxfp4":
            return _small_floats(scheme, n, k, scales)
        case "nf4":
            return _nf4(scheme, n * k)
        case "int8":
            return (StoredTensor("weight", "I8", (n, k)), StoredTensor("SCB", "F32", (n,)))
        case _:
            return _bytewise(scheme, n, k, scales)


def _packed(scheme: Scheme, n: int, k: int, scales: tuple[int, int]) -> tuple[StoredTensor, ...]:
    found = [
        StoredTensor("weight_packed", "I32", (n, _words(k, scheme.bits))),
        StoredTensor("weight_scale", scheme.scale, scales),
        StoredTensor("weight_shape", "I64", (2,)),
    ]
    if scheme.zero_points:
        shape = (_words(scales[0], scheme.bits), scales[1])
        found.append(StoredTensor("weight_zero_point", "I32", shape))
    if scheme.act_order:
        found.append(StoredTensor("weight_g_idx", "I32", (k,)))
    return tuple(found)


def _bytewise(scheme: Scheme, n: int, k: int, scales: tuple[int, int]) -> tuple[StoredTensor, ...]:
    """Codes of 8 bits, one in a byte."""
    code = "I8" if scheme.number == "int" else "F8_E4M3"
    name = "weight_scale_inv" if scheme.layout == "fp8" else "weight_scale"
    found = [StoredTensor("weight", code, (n, k)), StoredTensor(name, scheme.scale, scales)]
    if scheme.zero_points:
        found.append(StoredTensor("weight_zero_point", "I8", scales))
    if scheme.inputs == "static":
        name = "activation_scale" if scheme.layout == "fp8" else "input_scale"
        found.append(StoredTensor(name, scheme.scale, (1,)))
    if scheme.layout == "fbgemm":
        found.append(StoredTensor("input_scale_ub", "F32", (1,)))
    return tuple(found)


def _small_floats(
    scheme: Scheme, n: int, k: int, scales: tuple[int, int]
) -> tuple[StoredTensor, ...]:
    """Codes of 4 bits, two in a byte. NVFP4 has a scale of the scales, and one of the inputs."""
    found = [
        StoredTensor("weight_packed", "U8", (n, -(-k // 2))),
        StoredTensor("weight_scale", scheme.scale, scales),
    ]
    if scheme.layout == "nvfp4":
        found.append(StoredTensor("weight_global_scale", "F32", (1,)))
        if scheme.inputs:
            found.append(StoredTensor("input_global_scale", "F32", (1,)))
    return tuple(found)


def _nf4(scheme: Scheme, weights: int) -> tuple[StoredTensor, ...]:
    scales = _parts(weights, scheme.shared[1])
    found = [
        StoredTensor("weight", "U8", (-(-weights // 2), 1)),
        StoredTensor("weight.absmax", "U8" if scheme.nested else "F32", (scales,)),
        StoredTensor("weight.quant_map", "F32", (16,)),
    ]
    if scheme.nested:
        found.append(StoredTensor("weight.nested_absmax", "F32", (_parts(scales, NESTED),)))
        found.append(StoredTensor("weight.nested_quant_map", "F32", (NESTED,)))
    return tuple(found)


def _parts(size: int, part: int | None) -> int:
    return 1 if part is None else -(-size // part)


def _words(codes: int, bits: int) -> int:
    return -(-codes * bits // WORD)


def _region(shared: tuple[int | None, int | None]) -> str:
    rows, columns = shared
    if rows is None:
        return "a matrix"
    if columns is None:
        return "a row"
    return f"{columns} inputs" if rows == 1 else f"{rows} x {columns}"
