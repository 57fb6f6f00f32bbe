"""How the native decoder holds matrices of a scheme by default."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.quantization.scheme import Scheme
from penstock.model.sizing import GROUP

CODE_LAYOUTS = ("gptq", "gptq_v2", "awq", "packed")
"""Layouts of integers in words of 32 bits."""
_BITS = {"awq": (4,)}
_ANY_BITS = (4, 8)


class CpuForm(NamedTuple):
    form: str
    """A key of `penstock.model.sizing.FORMS`."""
    exactness: str
    """Whether these are the numbers of the checkpoint, in words."""


def are_words(scheme: Scheme) -> bool:
    """Whether a matrix is stored as integer codes that all backends read."""
    return (
        scheme.layout in CODE_LAYOUTS
        and scheme.number == "int"
        and scheme.bits in _BITS.get(scheme.layout, _ANY_BITS)
    )


def cpu_form(scheme: Scheme) -> CpuForm | None:
    """The form of a scheme's matrices; None for schemes that the decoder does not read."""
    if scheme.layout == "mxfp4":
        return CpuForm("mx4", "exact")
    if scheme.layout == "fp8" and scheme.shared == (128, 128):
        return CpuForm("w8", "rounded")
    if not are_words(scheme):
        return None
    columns = scheme.shared[1]
    whole = columns is None or columns % GROUP == 0
    if scheme.zero_points or scheme.act_order or not whole:
        return CpuForm("bf16", "rounded; exact in f32 with --quantization none")
    exactness = "exact" if scheme.scale == "F16" else "exact if all scales are f16 numbers"
    return CpuForm("s4" if scheme.bits == 4 else "w8", exactness)
