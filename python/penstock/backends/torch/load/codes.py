"""Matrices of integer codes (`Recipe.codes`): their tensors, checked against the shape of the
matrix, and their dequantisation.

Layouts: compressed-tensors 0.20 (`pack_quantized`), gptqmodel 7.7 (`qlinear`), autoawq 0.2.9
(`packing_utils`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.backends.torch.load.checkpoint import Checkpoint, Stored, wrong_shape
from penstock.core import PenstockError
from penstock.model.spec import CodeLayout, Codes, Recipe

WORD = 32
"""Bits of the integers that hold codes."""
BITS: dict[CodeLayout, tuple[int, ...]] = {
    "packed": (4, 8),
    "gptq": (4, 8),
    "gptq_v2": (4, 8),
    "awq": (4,),
}
"""Sizes of codes in bits, by layout."""
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Place in a word of AWQ's of each of eight neighbouring outputs."""
FIRST_FORMAT = {4: 0x11111111, 8: 0x01010101}
"""GPTQ's first format stores words of zero points less this, with borrows across zero points."""


class Parameters(NamedTuple):
    """Scales and zero points of some outputs of a matrix."""

    scales: Tensor
    """f32 [outputs, groups]."""
    zeros: Tensor
    """uint8 [outputs, groups]."""
    group: Tensor
    """Group of each input of the whole matrix, int64."""

    def numbers(self, codes: Tensor, outputs: slice, inputs: slice) -> Tensor:
        """Dequantise the codes of these outputs and inputs to f32."""
        group = self.group[inputs]
        zeros = self.zeros[outputs].index_select(1, group)
        scales = self.scales[outputs].index_select(1, group)
        return codes.float().sub_(zeros).mul_(scales)


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """The tensors of a matrix [outputs, inputs]. Their types and shapes belong together."""

    codes: Codes
    expert: int | None
    outputs: int
    inputs: int
    stored: Stored
    scales: Stored
    zeros: Stored | None
    order: Stored | None
    """Group of each input; None: groups are neighbours."""

    @property
    def by_inputs(self) -> bool:
        return by_inputs(self.codes)

    @property
    def inputs_per_row(self) -> int:
        """Inputs in a stored row, if rows are inputs."""
        return 1 if self.codes.layout == "awq" else WORD // self.codes.bits

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Numbers of scales along the outputs and along the inputs."""
        rows, cols = self.codes.rows, self.codes.cols
        return (
            1 if rows is None else -(-self.outputs // rows),
            1 if cols is None else -(-self.inputs // cols),
        )

    def parameters(self, outputs: slice | Tensor) -> Parameters:
        """Scales and zero points of these outputs, in host memory. Raises PenstockError, which
        names the tensor, for scales that are not finite and for groups that do not exist.
        """
        stored = self.scales.rows(self.expert).float()
        if not bool(stored.isfinite().all()):
            raise PenstockError(f"tensor {self.scales.name!r} has values that are not finite")
        scales = stored.T if self.by_inputs else stored.view(self.scale_shape)
        zeros = self._zeros().expand_as(scales)
        rows = torch.arange(self.outputs)[outputs] // (self.codes.rows or self.outputs)
        return Parameters(scales[rows], zeros[rows], self._group(scales.shape[1]))

    def of_outputs(self, rows: Tensor, inputs: slice) -> Tensor:
        """Codes of these inputs, uint8 [outputs, inputs], from whole stored rows of outputs, uint8
        [outputs, bytes].
        """
        per = 8 // self.codes.bits
        first = inputs.start // per
        codes = _unpack(rows[:, first : -(-inputs.stop // per)], self.codes.bits)
        return codes[:, inputs.start - first * per : inputs.stop - first * per]

    def of_inputs(self, rows: Tensor, outputs: slice | Tensor) -> Tensor:
        """Codes of these outputs, uint8 [outputs, inputs], from whole stored rows of inputs, uint8
        [rows, bytes].
        """
        words = rows.unflatten(1, (-1, WORD // 8))
        if self.codes.layout == "awq":
            return _of_awq(words)[:, outputs].T
        return _unpack(words[:, outputs], self.codes.bits).movedim(0, 1).flatten(1)

    def _zeros(self) -> Tensor:
        """Zero points, uint8 [outputs, groups], or [1, 1] if all are the same."""
        bits = self.codes.bits
        if self.zeros is None:
            return torch.full((1, 1), 1 << (bits - 1), dtype=torch.uint8)
        words, rows = self.zeros.rows(self.expert), self.scale_shape[0]
        if self.codes.layout == "packed":
            return _unpack(_bytes(words), bits).movedim(-1, 1).flatten(0, 1)[:rows]
        if self.codes.layout == "awq":
            return _of_awq(_bytes(words)).T[:rows]
        if self.codes.layout == "gptq":
            words = words.long() + FIRST_FORMAT[bits]
        return _unpack(_bytes(words), bits).flatten(1).T[:rows]

    def _group(self, groups: int) -> Tensor:
        if self.order is None:
            return torch.arange(self.inputs) // (self.codes.cols or self.inputs)
        order = self.order.rows(self.expert).long()
        wrong = (order < 0) | (order >= groups)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise PenstockError(
                f"tensor {self.order.name!r}: input {at} belongs to group {int(order[at])}, and "
                f"there are {groups}"
            )
        return order


def coded_matrix(checkpoint: Checkpoint, recipe: Recipe, n: int, k: int) -> CodedMatrix:
    """The tensors of a recipe with codes, for a matrix [n, k]. Raises PenstockError, which names a
    tensor that is missing or has a wrong type or shape.
    """
    codes, stored = recipe.codes, checkpoint[recipe.tensor]
    assert codes is not None
    if codes.bits not in BITS[codes.layout]:
        raise PenstockError(
            f"tensor {stored.name!r}: {codes.layout} with codes of {codes.bits} bits; not read"
        )
    zeros, order, shape = (
        None if name is None else checkpoint[name]
        for name in (codes.zeros, codes.groups, codes.shape)
    )
    outputs, inputs = _sizes(recipe, codes, stored, n, k)
    scales = checkpoint[codes.scales]
    matrix = CodedMatrix(codes, recipe.expert, outputs, inputs, stored, scales, zeros, order)
    _check_shapes(matrix)
    if shape is not None:
        _check_stated(shape, recipe.expert, outputs, inputs)
    return matrix


def _sizes(recipe: Recipe, codes: Codes, stored: Stored, n: int, k: int) -> tuple[int, int]:
    """Outputs and inputs of the whole stored matrix, of which the recipe's [n, k] may be a part."""
    shape, per = _shape(stored, recipe.expert), WORD // codes.bits
    rows, cols = recipe.rows or (0, n), recipe.cols or (0, k)
    if len(shape) != 2:
        return rows[1], cols[1]
    whole = {
        "packed": (shape[0], shape[1] * per),
        "awq": (shape[1] * per, shape[0]),
    }.get(codes.layout, (shape[1], shape[0] * per))
    return (
        max(rows[1], whole[0]) if recipe.rows else n,
        max(cols[1], whole[1]) if recipe.cols else k,
    )


def by_inputs(codes: Codes) -> bool:
    """True if stored rows are inputs, or words of neighbouring inputs; else, outputs."""
    return codes.layout != "packed"


def _check_shapes(matrix: CodedMatrix) -> None:
    n, k, bits = matrix.outputs, matrix.inputs, matrix.codes.bits
    rows, groups = matrix.scale_shape
    if matrix.codes.layout == "packed":
        stored, scales, zeros = (n, _words(k, bits)), (rows, groups), (_words(rows, bits), groups)
    else:
        stored, scales, zeros = (_words(k, bits), n), (groups, n), (groups, _words(n, bits))
    if matrix.codes.layout == "awq":
        stored = (k, _words(n, bits))
    _check(matrix, matrix.stored, ("I32",), stored)
    _check(matrix, matrix.scales, ("F16", "BF16", "F32"), scales)
    if matrix.zeros is not None:
        _check(matrix, matrix.zeros, ("I32",), zeros)
    if matrix.order is not None:
        _check(matrix, matrix.order, ("I32",), (k,))


def _check(
    matrix: CodedMatrix, stored: Stored, types: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    if stored.dtype not in types:
        raise PenstockError(
            f"tensor {stored.name!r} has the type {stored.dtype}, not {' or '.join(types)}"
        )
    if _shape(stored, matrix.expert) != shape:
        outer = () if matrix.expert is None else stored.shape[:1]
        raise wrong_shape(stored, (*outer, *shape))


def _check_stated(shape: Stored, expert: int | None, outputs: int, inputs: int) -> None:
    """Check the tensor that states a matrix's shape."""
    stated = shape.rows(expert).flatten().tolist()
    if stated != [outputs, inputs]:
        raise PenstockError(
            f"tensor {shape.name!r} states the shape {stated}, not {[outputs, inputs]}"
        )


def _shape(stored: Stored, expert: int | None) -> tuple[int, ...]:
    return stored.shape if expert is None else stored.shape[1:]


def _words(codes: int, bits: int) -> int:
    return -(-codes * bits // WORD)


def _bytes(words: Tensor) -> Tensor:
    """The four low bytes of each integer, lowest first: uint8 [..., 4]."""
    size = words.element_size()
    return words.contiguous().view(torch.uint8).unflatten(-1, (-1, size))[..., : WORD // 8]


def _unpack(data: Tensor, bits: int) -> Tensor:
    """Codes of 4 or 8 bits in bytes, lowest bits first: uint8 [..., codes]."""
    if bits == 8:
        return data
    return torch.stack([data & 15, data >> 4], -1).flatten(-2)


def _of_awq(words: Tensor) -> Tensor:
    """Codes of AWQ's words [..., words, 4 bytes], in the order of outputs: uint8 [..., codes]."""
    return _unpack(words, 4)[..., AWQ_PLACES].flatten(-2)
