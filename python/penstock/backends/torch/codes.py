"""Quantised matrices of experts that stay as codes on the device: MXFP4, and FP8 in blocks.

A cut that does not keep whole groups leaves them to be dequantised at load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from penstock.backends.torch.dequant import nibbles
from penstock.backends.torch.kernels.matrix import pack_words
from penstock.backends.torch.recipes import FP8_BLOCK, Source, check_shape, stored_rows
from penstock.model.spec import Recipe

Form = Literal["plain", "fp8_block", "mxfp4"]
MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows and columns of a matrix [n, k]."""

    n: int
    k: int
    rows: range
    cols: range


def kept_form(source: Source, recipe: Recipe, cut: Cut) -> Form:
    """The form in which the cut of a stored matrix can stay; "plain": as numbers."""
    stored = source.checkpoint[recipe.tensor]
    if stored.dtype in ("U8", "MXFP4"):
        return "mxfp4" if _whole(cut.cols, MXFP4_GROUP, cut.k) and not recipe.cols else "plain"
    blocks = stored.dtype == "F8_E4M3" and recipe.scales is not None
    whole = _whole(cut.cols, FP8_BLOCK, cut.k) and _whole(cut.rows, FP8_BLOCK, cut.n)
    direct = not (recipe.interleaved or recipe.rows or recipe.cols or recipe.transposed)
    return "fp8_block" if blocks and whole and direct and recipe.expert is None else "plain"


def _whole(part: range, group: int, whole: int) -> bool:
    ends = part.stop % group == 0 or part.stop == whole
    return part.start % group == 0 and ends


def read_codes(source: Source, recipe: Recipe, form: Form, cut: Cut) -> tuple[Tensor, Tensor]:
    """Codes and scales of the cut, as `kernels.Matrix` has them for one expert."""
    if form == "fp8_block":
        return _fp8(source, recipe, cut)
    codes, scales = _mxfp4(source, recipe, cut)
    groups = slice(cut.cols.start // MXFP4_GROUP, -(-cut.cols.stop // MXFP4_GROUP))
    pairs, exponents = codes[:, groups].flatten(1), scales[:, groups]
    return pack_words(source.on_device(pairs)), source.on_device(exponents)


def _fp8(source: Source, recipe: Recipe, cut: Cut) -> tuple[Tensor, Tensor]:
    stored = source.checkpoint[recipe.tensor]
    check_shape(recipe, stored, cut.n, cut.k)
    scales = source.block_scales(recipe, stored)
    rows, cols = (slice(each.start, each.stop) for each in (cut.rows, cut.cols))
    blocks = tuple(
        slice(each.start // FP8_BLOCK, -(-each.stop // FP8_BLOCK)) for each in (cut.rows, cut.cols)
    )
    codes = source.on_device(stored.rows().view(torch.uint8)[rows, cols])
    return codes.view(torch.float8_e4m3fn), scales[blocks].float()


def _mxfp4(source: Source, recipe: Recipe, cut: Cut) -> tuple[Tensor, Tensor]:
    """Codes [rows, groups, 16], two neighbours a byte, and scales [rows, groups]."""
    stored, first = source.checkpoint[recipe.tensor], recipe.rows[0] if recipe.rows else 0
    order = stored_rows(range(first + cut.rows.start, first + cut.rows.stop), recipe)
    if stored.dtype == "U8":
        codes, scales = source.mxfp4(recipe, cut.n, cut.k)
        return codes[recipe.expert or 0][order], scales[recipe.expert or 0][order]
    check_shape(recipe, stored, cut.n, cut.k)
    rows = stored.rows() if recipe.expert is None else stored.rows()[recipe.expert]
    blocks = rows[order].unflatten(1, (-1, 17))
    # ggml's bytes have the first half of a group in their low halves.
    low, high = nibbles(blocks[..., 1:]).unflatten(-1, (16, 2)).unbind(-1)
    return low | (high << 4), blocks[..., 0]
