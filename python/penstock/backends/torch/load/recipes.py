"""Reads the matrices and vectors that weight recipes describe from a checkpoint, and slices them to
a rank's part.

Matrices are read asynchronously: `Source.settle` waits for them. Vectors are read synchronously.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from penstock.backends.torch.load import dequant
from penstock.backends.torch.load.checkpoint import INTEGERS, Checkpoint, Stored, wrong_shape
from penstock.backends.torch.load.codes import Parameters, coded_matrix
from penstock.backends.torch.load.uploads import PlainReads, Reads
from penstock.core import PenstockError
from penstock.model.spec import Recipe

FP8_BLOCK = 128
EXPERT = "{e}"
META = torch.device("meta")
CONVERTED_BYTES = 16 << 20
"""Maximum stored bytes of a matrix converted at once. The f32 result and intermediates take a few
hundred MB."""
CODED_BYTES = 4 << 20
"""The same for matrices of integer codes, whose f32 result is eight times as large."""

Place = Callable[[torch.Tensor, slice], None]
"""Callback that receives rows on the device as stored, and their range among the requested rows."""


@dataclass(frozen=True, slots=True)
class Source:
    """Reads matrices and vectors of a checkpoint onto a device.

    Raises PenstockError, which names a tensor that is missing or has the wrong shape, or, from
    `check_finite`, one with values that are not finite.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    """Type of matrices. Vectors are f32."""
    uploads: Reads | None = None
    """Reads of the files onto the device. None: nothing is read, and all tensors are on the meta
    device (shapes without data).
    """
    _filled: list[tuple[str, torch.Tensor]] = field(default_factory=list, init=False)
    """Tensor names, and the device tensors that they were read into."""

    @property
    def device(self) -> torch.device:
        return META if self.uploads is None else self.uploads.device

    def matrix(
        self, recipe: Recipe, n: int, k: int, rows: range | None = None, cols: range | None = None
    ) -> torch.Tensor:
        """The recipe's matrix [n, k], or its `rows` and `cols`, on the device. Complete after
        `settle`.
        """
        rows, cols = _or_all(rows, n), _or_all(cols, k)
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
        """Like `matrix`, but reads into a device tensor of any strides."""
        rows, cols = _or_all(rows, n), _or_all(cols, k)
        stored = self.checkpoint[recipe.tensor]
        if recipe.codes is not None:
            self._fill_coded(target, recipe, n, k, rows, cols)
        elif stored.dtype == "U8":
            self._fill_mxfp4(target, recipe, n, k, rows, cols)
        else:
            check_type(stored)
            check_shape(recipe, stored, n, k)
            own = stored_cols(cols, recipe)
            if recipe.transposed:
                self._fill_transposed(target, recipe, stored, rows, own)
            elif stored.dtype == "F8_E4M3":
                self._fill_scaled(target, recipe, stored, rows, own)
            else:
                self.fill_rows(target, recipe, rows, own)
        self._filled.append((recipe.tensor, target))

    def fill_rows(
        self, target: torch.Tensor, recipe: Recipe, rows: range, cols: slice | None = None
    ) -> None:
        """Read `rows` of the recipe's matrix into `target`: as stored, or converted to its type.
        `cols`: columns in the stored tensor; None: all.
        """
        stored, uploads = self.checkpoint[recipe.tensor], self.uploads
        if uploads is None:
            return
        order, size = rows_in_file(rows, recipe), stored.row_bytes()
        whole = cols is None or range(*cols.indices(stored.shape[-1])) == range(stored.shape[-1])
        same = stored.blocks is None and stored.kind == target.dtype and target.is_contiguous()
        if whole and same and isinstance(order, slice):
            uploads.fill(target, stored, first_byte(stored, recipe) + order.start * size)
            return

        def place(picked: torch.Tensor, part: slice) -> None:
            numbers = _numbers(stored, picked)
            target[part].copy_(numbers if cols is None else numbers[:, cols])

        self.stage_rows(recipe, rows, place)

    def stage_rows(
        self,
        recipe: Recipe,
        rows: range,
        place: Place,
        dimensions: int = 1,
        at_once: int = CONVERTED_BYTES,
    ) -> None:
        """Call `place` with the stored bytes of `rows`, in their order and at most `at_once` bytes
        each time, before `settle` returns. A row spans the last `dimensions` dimensions of the
        stored tensor.
        """
        uploads, stored = self.uploads, self.checkpoint[recipe.tensor]
        if uploads is None or not rows:
            return
        size, first = stored.row_bytes(dimensions), first_byte(stored, recipe)
        order = rows_in_file(rows, recipe)
        if isinstance(order, slice):
            most = max(1, at_once // size)
            for at in range(0, len(rows), most):
                count = min(most, len(rows) - at)

                def given(
                    data: torch.Tensor, at: int = at, count: int = count, size: int = size
                ) -> None:
                    place(data.view(count, size), slice(at, at + count))

                uploads.stage(stored, first + (order.start + at) * size, count * size, given)
            return
        low, high = int(order.min()), int(order.max()) + 1
        places = self.on_device(order - low)

        def gathered(data: torch.Tensor) -> None:
            whole, most = data.view(high - low, size), max(1, at_once // size)
            for at in range(0, len(places), most):
                part = slice(at, min(at + most, len(places)))
                place(whole[places[part]], part)

        uploads.stage(stored, first + low * size, (high - low) * size, gathered)

    def _fill_transposed(
        self, target: torch.Tensor, recipe: Recipe, stored: Stored, rows: range, cols: slice
    ) -> None:
        if not stored.is_plain:
            raise PenstockError(
                f"tensor {stored.name!r}: transposed and stored as {stored.dtype}; not read"
            )
        if self.uploads is None:
            return
        shape = stored.shape[-2:]
        order = rows_in_file(rows, recipe)
        if not isinstance(order, slice):
            order = self.on_device(order)

        def place(data: torch.Tensor) -> None:
            target.copy_(data.view(stored.kind).view(shape).T[order, cols])

        size = stored.row_bytes() * shape[0]
        self.uploads.stage(stored, first_byte(stored, recipe), size, place)

    def _fill_scaled(
        self, target: torch.Tensor, recipe: Recipe, stored: Stored, rows: range, cols: slice
    ) -> None:
        """Fill `target` from FP8 codes with one scale per block of 128 x 128."""
        scales = self.checkpoint[block_scales(recipe, stored)]
        if self.uploads is None:
            return
        own = self.on_device(self._checked(scales, scales.rows().float()))
        wide = own.repeat_interleave(FP8_BLOCK, 1)[:, : stored.shape[1]]
        at = torch.arange(stored.shape[0])[rows_in_file(rows, recipe)] // FP8_BLOCK
        block = self.on_device(at)

        def place(picked: torch.Tensor, part: slice) -> None:
            numbers = picked.view(torch.float8_e4m3fn).float() * wide[block[part]]
            target[part].copy_(numbers[:, cols])

        self.stage_rows(recipe, rows, place)

    def _fill_coded(
        self, target: torch.Tensor, recipe: Recipe, n: int, k: int, rows: range, cols: range
    ) -> None:
        """Fill `target` from integer codes with scales and zero points."""
        matrix = coded_matrix(self.checkpoint, recipe, n, k)
        if self.uploads is None:
            return
        order, own = rows_in_file(rows, recipe), stored_cols(cols, recipe)
        scales, zeros, group = map(self.on_device, matrix.parameters(order))
        parameters = Parameters(scales, zeros, group)
        if not matrix.by_inputs:

            def place(picked: torch.Tensor, part: slice) -> None:
                codes = matrix.of_outputs(picked, own)
                target[part].copy_(parameters.numbers(codes, part, own))

            self.stage_rows(recipe, rows, place, at_once=CODED_BYTES)
            return
        outputs = order if isinstance(order, slice) else self.on_device(order)
        per = matrix.inputs_per_row
        first = own.start // per

        def place_inputs(picked: torch.Tensor, part: slice) -> None:
            start, stop = (per * (first + end) for end in (part.start, part.stop))
            inside = slice(max(start, own.start), min(stop, own.stop))
            codes = matrix.of_inputs(picked, outputs)[:, inside.start - start : inside.stop - start]
            numbers = parameters.numbers(codes, slice(None), inside)
            target[:, inside.start - own.start : inside.stop - own.start].copy_(numbers)

        stored = Recipe(recipe.tensor, expert=recipe.expert)
        words = range(first, -(-own.stop // per))
        self.stage_rows(stored, words, place_inputs, at_once=CODED_BYTES)

    def _fill_mxfp4(
        self, target: torch.Tensor, recipe: Recipe, n: int, k: int, rows: range, cols: range
    ) -> None:
        """Fill `target` from an expert's MXFP4 rows, stored as codes [experts, rows, groups, 16]
        and scales.
        """
        scales = self.mxfp4_scales(recipe, n, k)
        if self.uploads is None:
            return
        own = self.on_device(scales.rows(recipe.expert or 0)[rows_in_file(rows, recipe)])

        def place(picked: torch.Tensor, part: slice) -> None:
            numbers = dequant.mxfp4(picked.view(len(picked), -1, 16), own[part])
            target[part].copy_(numbers[:, cols.start : cols.stop])

        self.stage_rows(replace(recipe, expert=recipe.expert or 0), rows, place, dimensions=2)

    def mxfp4_scales(self, recipe: Recipe, n: int, k: int) -> Stored:
        """The tensor of scales [experts, rows, groups] that belongs to codes [experts, rows,
        groups, 16]. Raises PenstockError if a shape does not match.
        """
        stored = self.checkpoint[recipe.tensor]
        if recipe.scales is None:
            raise PenstockError(f"tensor {stored.name!r}: bytes without scales; not read")
        scales = self.checkpoint[recipe.scales]
        end = recipe.rows[1] if recipe.rows else n
        if len(stored.shape) != 4 or stored.shape[1] < end or stored.shape[2:] != (k // 32, 16):
            raise wrong_shape(stored, (stored.shape[0], end, k // 32, 16))
        if scales.shape != stored.shape[:3] or scales.dtype != "U8":
            raise wrong_shape(scales, stored.shape[:3])
        return scales

    def on_device(self, host: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device, in the same type."""
        if self.uploads is None:
            return host.to(META)
        return self.uploads.send(host)

    def settle(self) -> None:
        """Finish pending reads. Work launched on the device afterwards can read the contents of all
        requested matrices.
        """
        if self.uploads is not None:
            self.uploads.settle()

    def check_finite(self) -> None:
        """Raise PenstockError if any tensor read so far has values that are not finite. All are
        checked at once, because each check waits for the device.
        """
        if self.uploads is None:
            return
        found = {id(root): root for root in (_root(each) for _, each in self._filled)}
        # `aminmax` takes one pass without copies; the copies of `isfinite` may not fit in memory.
        ends = [end for root in found.values() if root.numel() for end in root.aminmax()]
        if ends and not bool(torch.stack([end.float() for end in ends]).isfinite().all()):
            for name, numbers in self._filled:
                _check(name, numbers)
        self._filled.clear()

    def host_matrix(self, recipe: Recipe, n: int, k: int) -> torch.Tensor:
        """A small matrix [n, k] in f32, in host memory."""
        reads = None if self.uploads is None else PlainReads()
        source = Source(self.checkpoint, torch.float32, reads)
        found = source.matrix(recipe, n, k)
        source.check_finite()
        return found

    def host_vector(self, recipe: Recipe, n: int) -> torch.Tensor:
        """A vector of `n` elements in f32, in host memory."""
        stored = self.checkpoint[recipe.tensor]
        start, stop = recipe.rows or (0, n)
        shape = stored.shape if recipe.expert is None else stored.shape[1:]
        fits = len(shape) == 1 and stop - start == n and stop <= shape[0]
        if not fits or (recipe.rows is None and shape[0] != n):
            raise wrong_shape(stored, (stop,))
        check_type(stored)
        if self.uploads is None:
            return torch.empty(n, device=META)
        numbers = stored.rows(recipe.expert)
        if stored.blocks is not None:
            numbers = dequant.dequantize(stored.dtype, numbers)
        return self._checked(stored, numbers[stored_rows(range(start, stop), recipe)].float())

    def vector(self, recipe: Recipe, n: int) -> torch.Tensor:
        """A vector of `n` elements in f32, on the device."""
        return self.on_device(self.host_vector(recipe, n))

    def _checked(self, stored: Stored, numbers: torch.Tensor) -> torch.Tensor:
        if not numbers.is_meta:
            _check(stored.name, numbers)
        return numbers


def _check(name: str, numbers: torch.Tensor) -> None:
    if numbers.numel() and not all(bool(end.isfinite()) for end in numbers.aminmax()):
        raise PenstockError(f"tensor {name!r} has values that are not finite")


def _root(view: torch.Tensor) -> torch.Tensor:
    """The base of a view, so that one check covers all parts read into it."""
    return view if view._base is None else view._base


def _numbers(stored: Stored, rows: torch.Tensor) -> torch.Tensor:
    """The elements of whole rows that are given as stored bytes."""
    if stored.blocks is not None:
        return dequant.dequantize(stored.dtype, rows)
    return rows.view(stored.kind)


def first_byte(stored: Stored, recipe: Recipe) -> int:
    """Offset in bytes of the recipe's expert in the stored tensor; 0 if the tensor has
    one matrix.
    """
    return 0 if recipe.expert is None else recipe.expert * (stored.size // stored.shape[0])


def rows_in_file(rows: range, recipe: Recipe) -> slice | torch.Tensor:
    """Rows of the stored tensor that become `rows` of the recipe's matrix, as a slice or as
    indices.
    """
    first = recipe.rows[0] if recipe.rows else 0
    return stored_rows(range(first + rows.start, first + rows.stop), recipe)


def check_type(stored: Stored) -> None:
    """Raise PenstockError for integers where weights are expected."""
    if stored.dtype in INTEGERS:
        raise PenstockError(
            f"tensor {stored.name!r}: integers of type {stored.dtype} without scales; not read"
        )


def block_scales(recipe: Recipe, stored: Stored) -> str:
    """Name of the tensor with the block scales of an FP8 matrix."""
    if recipe.scales is None:
        raise PenstockError(f"tensor {stored.name!r}: 8-bit floats without scales; not read")
    return recipe.scales


def tensor_names(recipe: Recipe) -> list[str]:
    """Names of the tensors of which the recipe reads a share or all."""
    names = [recipe.tensor, recipe.scales]
    if recipe.codes is not None:
        names += [recipe.codes.scales, recipe.codes.zeros, recipe.codes.groups]
    return [name for name in names if name is not None]


def _or_all(part: range | None, whole: int) -> range:
    return range(whole) if part is None else part


def of_expert(recipe: Recipe, expert: int) -> Recipe:
    """The recipe of one expert, from the expert's own tensor (by name) or from an entry of a tensor
    that stacks all experts.
    """
    if EXPERT not in recipe.tensor:
        return replace(recipe, expert=expert)

    def own(name: str | None) -> str | None:
        return name and name.replace(EXPERT, str(expert))

    codes = recipe.codes
    if codes is not None:
        codes = replace(
            codes,
            scales=codes.scales.replace(EXPERT, str(expert)),
            zeros=own(codes.zeros),
            groups=own(codes.groups),
            shape=own(codes.shape),
        )
    tensor = recipe.tensor.replace(EXPERT, str(expert))
    return replace(recipe, tensor=tensor, scales=own(recipe.scales), codes=codes)


def stored_rows(rows: range, recipe: Recipe) -> slice | torch.Tensor:
    """Rows of the stored tensor for `rows`, which are in half-split rotation order."""
    if recipe.interleaved is None:
        return slice(rows.start, rows.stop)
    block, plain = recipe.interleaved, recipe.unrotated or 0
    at = torch.arange(rows.start, rows.stop)
    inside = at % block - plain
    half = (block - plain) // 2
    turned = at // block * block + plain + inside % half * 2 + inside // half
    return torch.where(inside < 0, at, turned)


def stored_cols(cols: range, recipe: Recipe) -> slice:
    """Columns of the stored tensor for `cols`."""
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
