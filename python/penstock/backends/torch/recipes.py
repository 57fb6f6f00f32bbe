"""Recipes to tensors: where the numbers of a role lie in a checkpoint, read and cut."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from penstock.backends.torch import dequant
from penstock.backends.torch.stored import Checkpoint, Stored
from penstock.backends.torch.uploads import Uploads
from penstock.core import PenstockError
from penstock.model.spec import Recipe

FP8_BLOCK = 128
EXPERT = "{e}"


@dataclass(frozen=True, slots=True)
class Source:
    """Reads matrices and vectors of a checkpoint onto a device.

    PenstockError names the tensor that is missing, or of another shape; that of `check_finite` one
    that has values that are not finite.
    """

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    """That of matrices; vectors are f32."""
    uploads: Uploads | None = None
    """None: the device reads mapped files by itself."""
    _ends: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list, init=False)
    """The least and the largest number of what was read of each tensor, on the device: what is not
    a number is both.
    """

    def matrix(
        self, recipe: Recipe, n: int, k: int, rows: range | None = None, cols: range | None = None
    ) -> torch.Tensor:
        """`rows` and `cols`, or all, of the matrix [n, k]. Without uploads it may be a view of the
        mapped file.
        """
        rows, cols = _or_all(rows, n), _or_all(cols, k)
        if self.uploads is None:
            numbers = self.numbers(recipe, n, k, rows, cols)
            return self._noted(recipe, numbers.to(self.dtype).contiguous())
        out = torch.empty(len(rows), len(cols), dtype=self.dtype, device=self.device)
        self.fill(out, recipe, n, k, rows, cols)
        return out

    def fill(
        self,
        target: torch.Tensor,
        recipe: Recipe,
        n: int,
        k: int,
        rows: range | None = None,
        cols: range | None = None,
    ) -> None:
        """As `matrix`, into memory of the device."""
        rows, cols = _or_all(rows, n), _or_all(cols, k)
        stored = self.checkpoint[recipe.tensor]
        if self.uploads is None or not stored.is_plain:
            target.copy_(self.numbers(recipe, n, k, rows, cols))
        else:
            picked = self._picked(recipe, stored, n, k, rows)
            self.uploads.copy(picked[:, stored_cols(cols, recipe)], target)
        self._noted(recipe, target)

    def on_device(self, host: torch.Tensor) -> torch.Tensor:
        """Host memory as the device has it, in the same type."""
        if self.uploads is None:
            return host.to(self.device)
        out = torch.empty(host.shape, dtype=host.dtype, device=self.device)
        self.uploads.copy(host, out)
        return out

    def check_finite(self) -> None:
        """Check all that was read so far, at once: each look at the device waits for its work."""
        if not self._ends:
            return
        ends = torch.stack([end for _, *ends in self._ends for end in ends])
        finite = ends.isfinite().view(-1, 2).all(1).tolist()
        for (name, *_), one in zip(self._ends, finite, strict=True):
            if not one:
                raise PenstockError(f"tensor {name!r} has values that are not finite")
        self._ends.clear()

    def numbers(self, recipe: Recipe, n: int, k: int, rows: range, cols: range) -> torch.Tensor:
        """As `matrix`, in the type that is stored, or f32 where that is quantised."""
        stored = self.checkpoint[recipe.tensor]
        if stored.dtype == "U8":
            return self._mxfp4(recipe, stored, n, k, rows)[:, cols.start : cols.stop]
        picked = self._picked(recipe, stored, n, k, rows)
        if stored.blocks is not None:
            picked = dequant.dequantize(stored.dtype, self.on_device(picked))
        elif stored.dtype == "F8_E4M3":
            picked = self._scaled(recipe, stored, self.on_device(picked), rows)
        picked = picked[:, stored_cols(cols, recipe)]
        return self.on_device(picked) if stored.is_plain else picked

    def vector(self, recipe: Recipe, n: int) -> torch.Tensor:
        """`n` numbers in f32."""
        stored = self.checkpoint[recipe.tensor]
        start, stop = recipe.rows or (0, n)
        numbers = stored.rows()
        if recipe.expert is not None:
            numbers = numbers[recipe.expert]
        if stored.blocks is not None:
            numbers = dequant.dequantize(stored.dtype, numbers)
        fits = numbers.ndim == 1 and stop - start == n and stop <= len(numbers)
        if not fits or (recipe.rows is None and len(numbers) != n):
            raise wrong_shape(stored, (stop,))
        order = stored_rows(range(start, stop), recipe)
        return self._noted(recipe, self.on_device(numbers[order].float()))

    def _picked(self, recipe: Recipe, stored: Stored, n: int, k: int, rows: range) -> torch.Tensor:
        """Rows of the matrix in the order of half-split rotation, with all stored columns."""
        matrix = stored.rows()
        if recipe.expert is not None:
            matrix = matrix[recipe.expert]
        first = recipe.rows[0] if recipe.rows else 0
        check_shape(recipe, stored, n, k)
        if recipe.transposed:
            if stored.blocks is not None:
                raise PenstockError(
                    f"tensor {stored.name!r}: transposed and stored as {stored.dtype}; not read"
                )
            matrix = matrix.T
        order = stored_rows(range(first + rows.start, first + rows.stop), recipe)
        return matrix[order]

    def _scaled(
        self, recipe: Recipe, stored: Stored, picked: torch.Tensor, rows: range
    ) -> torch.Tensor:
        """8-bit floats times the scales of their blocks."""
        scales = self.block_scales(recipe, stored)
        first = recipe.rows[0] if recipe.rows else 0
        order = stored_rows(range(first + rows.start, first + rows.stop), recipe)
        at = self.on_device(torch.arange(stored.shape[0])[order] // FP8_BLOCK)
        wide = scales.repeat_interleave(FP8_BLOCK, 1)[:, : stored.shape[1]]
        return picked.float() * wide[at]

    def block_scales(self, recipe: Recipe, stored: Stored) -> torch.Tensor:
        """One for each block of a matrix of 8-bit floats."""
        if recipe.scales is None:
            raise PenstockError(f"tensor {stored.name!r}: 8-bit floats without scales; not read")
        scales = self.checkpoint[recipe.scales]
        expected = tuple(-(-size // FP8_BLOCK) for size in stored.shape)
        if scales.shape != expected:
            raise wrong_shape(scales, expected)
        return self._noted(Recipe(recipe.scales), self.on_device(scales.rows()))

    def _mxfp4(self, recipe: Recipe, stored: Stored, n: int, k: int, rows: range) -> torch.Tensor:
        """Rows of an expert that is stored as codes [experts, rows, groups, 16] and scales."""
        codes, scales = self.mxfp4(recipe, n, k)
        expert = recipe.expert or 0
        first = recipe.rows[0] if recipe.rows else 0
        order = stored_rows(range(first + rows.start, first + rows.stop), recipe)
        picked = (self.on_device(each[expert][order]) for each in (codes, scales))
        return dequant.mxfp4(*picked)

    def mxfp4(self, recipe: Recipe, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes [experts, rows, groups, 16] and scales [experts, rows, groups] as stored."""
        stored = self.checkpoint[recipe.tensor]
        if recipe.scales is None:
            raise PenstockError(f"tensor {stored.name!r}: bytes without scales; not read")
        scales = self.checkpoint[recipe.scales]
        end = recipe.rows[1] if recipe.rows else n
        if len(stored.shape) != 4 or stored.shape[1] < end or stored.shape[2:] != (k // 32, 16):
            raise wrong_shape(stored, (stored.shape[0], end, k // 32, 16))
        if scales.shape != stored.shape[:3] or scales.dtype != "U8":
            raise wrong_shape(scales, stored.shape[:3])
        return stored.rows(), scales.rows()

    def _noted(self, recipe: Recipe, numbers: torch.Tensor) -> torch.Tensor:
        if numbers.numel() and not numbers.is_meta:
            # In one pass; `isfinite` makes copies, of which there may be no room for the largest.
            self._ends.append((recipe.tensor, *numbers.aminmax()))
        return numbers


def _or_all(part: range | None, whole: int) -> range:
    return range(whole) if part is None else part


def of_expert(recipe: Recipe, expert: int) -> Recipe:
    """Recipe of one expert: by name, or by index into a tensor that stacks experts."""
    if EXPERT not in recipe.tensor:
        return replace(recipe, expert=expert)
    scales = recipe.scales and recipe.scales.replace(EXPERT, str(expert))
    return replace(recipe, tensor=recipe.tensor.replace(EXPERT, str(expert)), scales=scales)


def stored_rows(rows: range, recipe: Recipe) -> slice | torch.Tensor:
    """Where `rows`, in the order of half-split rotation, are in the file."""
    if recipe.interleaved is None:
        return slice(rows.start, rows.stop)
    block, plain = recipe.interleaved, recipe.unrotated or 0
    at = torch.arange(rows.start, rows.stop)
    inside = at % block - plain
    half = (block - plain) // 2
    turned = at // block * block + plain + inside % half * 2 + inside // half
    return torch.where(inside < 0, at, turned)


def stored_cols(cols: range, recipe: Recipe) -> slice:
    """Where `cols` are in the file."""
    first = recipe.cols[0] if recipe.cols else 0
    return slice(first + cols.start, first + cols.stop)


def check_shape(recipe: Recipe, stored: Stored, n: int, k: int) -> None:
    rows, cols = recipe.rows or (0, n), recipe.cols or (0, k)
    shape = stored.shape[1:] if recipe.expert is not None else stored.shape
    if recipe.transposed:
        shape = shape[::-1]
    fits = len(shape) == 2 and rows[1] - rows[0] == n and cols[1] - cols[0] == k
    for size, (_, end), cut in zip(shape, (rows, cols), (recipe.rows, recipe.cols), strict=False):
        fits = fits and (size == end or (cut is not None and size > end))
    if not fits:
        wanted = (rows[1], cols[1])
        raise wrong_shape(stored, wanted[::-1] if recipe.transposed else wanted)


def wrong_shape(stored: Stored, expected: tuple[int, ...]) -> PenstockError:
    return PenstockError(
        f"tensor {stored.name!r} has the shape {list(stored.shape)}, not {list(expected)}"
    )
