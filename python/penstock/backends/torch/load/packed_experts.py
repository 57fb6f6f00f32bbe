"""Expert matrices that stay quantised on the device: MXFP4, and block-wise FP8.

If a rank's part of a matrix would split a block with one scale, the matrix is dequantised when it
is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from penstock.backends.torch.kernels.matrix import pack_words
from penstock.backends.torch.load.dequant import nibbles
from penstock.backends.torch.load.recipes import FP8_BLOCK, Source, block_scales, check_shape
from penstock.model.spec import Recipe

Form = Literal["plain", "fp8_block", "mxfp4"]
MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows and columns of a matrix [n, k] that this rank holds."""

    n: int
    k: int
    rows: range
    cols: range


def kept_form(source: Source, recipe: Recipe, cut: Cut) -> Form:
    """The quantised form in which the device can hold this part of the recipe's matrix; "plain" if
    it must be dequantised.
    """
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


def empty_codes(source: Source, form: Form, cut: Cut, *outer: int) -> tuple[Tensor, Tensor]:
    """Uninitialised codes and scales [*outer, ...] for matrices of the size of `cut`, in the layout
    of `kernels.Matrix`.
    """
    rows, cols, device = len(cut.rows), len(cut.cols), source.device
    if form == "fp8_block":
        blocks = -(-rows // FP8_BLOCK), -(-cols // FP8_BLOCK)
        return (
            torch.empty(*outer, rows, cols, dtype=torch.float8_e4m3fn, device=device),
            torch.empty(*outer, *blocks, device=device),
        )
    groups = -(-cols // MXFP4_GROUP)
    codes = (*outer, rows, groups * MXFP4_GROUP // 2)
    return (
        torch.empty(codes, dtype=torch.uint8, device=device),
        torch.empty(*outer, rows, groups, dtype=torch.uint8, device=device),
    )


def fill_codes(
    source: Source, codes: Tensor, scales: Tensor, recipe: Recipe, form: Form, cut: Cut
) -> None:
    """Read the codes and scales of the cut into the given tensors, which are complete after
    `Source.settle`.
    """
    stored = source.checkpoint[recipe.tensor]
    if form == "fp8_block":
        check_shape(recipe, stored, cut.n, cut.k)
        source.fill_rows(codes, recipe, cut.rows, slice(cut.cols.start, cut.cols.stop))
        n, k = (len(_blocks(range(size))) for size in (cut.n, cut.k))
        own = (_blocks(cut.rows), _blocks(cut.cols))
        source.fill(scales, Recipe(block_scales(recipe, stored)), n, k, *own)
        return
    groups = slice(cut.cols.start // MXFP4_GROUP, -(-cut.cols.stop // MXFP4_GROUP))
    if stored.dtype == "U8":
        _fill_pair(source, codes, scales, recipe, cut, groups)
        return
    check_shape(recipe, stored, cut.n, cut.k)

    def place(picked: Tensor, part: slice) -> None:
        blocks = picked.unflatten(1, (-1, 17))[:, groups]
        # In ggml's layout, the low nibbles hold the first half of a group.
        low, high = nibbles(blocks[..., 1:]).unflatten(-1, (16, 2)).unbind(-1)
        codes[part] = pack_words((low | (high << 4)).flatten(1))
        scales[part] = blocks[..., 0]

    source.stage_rows(recipe, cut.rows, place)


def _fill_pair(
    source: Source, codes: Tensor, scales: Tensor, recipe: Recipe, cut: Cut, groups: slice
) -> None:
    """Read MXFP4 that is stored as a pair of tensors: codes [experts, rows, groups, 16], with two
    neighbours per byte, and scales [experts, rows, groups].
    """
    apart = source.mxfp4_scales(recipe, cut.n, cut.k)
    expert = recipe.expert or 0

    def place(picked: Tensor, part: slice) -> None:
        codes[part] = pack_words(picked.unflatten(1, (-1, 16))[:, groups].flatten(1))

    source.stage_rows(replace(recipe, expert=expert), cut.rows, place, dimensions=2)
    source.fill_rows(scales, replace(recipe, tensor=apart.name, expert=expert), cut.rows, groups)


def _blocks(part: range) -> range:
    return range(part.start // FP8_BLOCK, -(-part.stop // FP8_BLOCK))
