"""Calls of Penstock's Triton kernels on generated data, for tests and GPU runs. A case has the
Triton launch and a reference implementation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.kernels import (
    Activation,
    Heads,
    Matrix,
    Scoring,
    Spans,
    decode,
    latent,
    merge,
    norm,
    prefill,
    rotation,
)
from penstock.backends.torch.kernels import activation as activations
from penstock.backends.torch.kernels.checksum import remainders_reference, remainders_triton
from penstock.backends.torch.kernels.experts import (
    experts_grouped,
    experts_reference,
    experts_triton,
    linear_reference,
    linear_triton,
    linear_widened,
)
from penstock.backends.torch.kernels.widen import widen_reference, widen_triton

# Maximum error of an output by number type, relative to the output's largest absolute value.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """One kernel call. `written`: indices of the arguments that the call modifies."""

    name: str
    launch: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    written: tuple[int, ...] = ()
    launch_options: dict[str, Any] = field(default_factory=dict)
    bytes: int = 0
    """Minimum number of bytes that the call must read and write."""
    operations: int = 0
    may_differ: float = 0.0
    """Fraction of the integers in the output that may differ from the reference."""


@dataclass
class Maker:
    """Generates random tensors of one type on one device. The values are the same in every run."""

    dtype: torch.dtype
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(self.seed)

    def numbers(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        made = torch.randn(*shape, generator=self.generator, device=self.device)
        return made.to(dtype or self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        made = torch.randint(low, high, shape, generator=self.generator, device=self.device)
        return made.int()

    def wide(self, *shape: int) -> Tensor:
        return self.numbers(*shape, dtype=torch.float32)

    def index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)


def widened(value: Any, dtype: torch.dtype) -> Any:
    """A copy of `value` in which tensors of type `dtype` become f32, also inside tuples, dicts and
    dataclasses.
    """
    if isinstance(value, Tensor):
        return value.to(torch.float32, copy=True) if value.dtype == dtype else value.clone()
    if isinstance(value, tuple):
        return tuple(widened(item, dtype) for item in value)
    if isinstance(value, dict):
        return {name: widened(item, dtype) for name, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return type(value)(**{name: widened(item, dtype) for name, item in fields.items()})
    return value


def error(case: Case, dtype: torch.dtype) -> float:
    """Largest difference between the kernel's output and the reference in f32, relative to the
    reference's largest absolute value. Integers must be equal, except for the fraction
    `may_differ`.
    """
    args = widened(case.args, dtype)
    wanted = case.reference(*args, **widened(case.options, dtype))
    got = case.launch(*case.args, **case.options, **case.launch_options)
    outputs = list(zip(_tensors(got), _tensors(wanted), strict=True))
    outputs += [(case.args[i], args[i]) for i in case.written]
    return max((_difference(a, b, case.may_differ) for a, b in outputs), default=0.0)


def _tensors(value: Any) -> list[Tensor]:
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def _difference(got: Tensor, wanted: Tensor, may_differ: float) -> float:
    if not wanted.dtype.is_floating_point:
        if got.shape != wanted.shape:
            return math.inf
        return 0.0 if int((got != wanted).sum()) <= may_differ * wanted.numel() else math.inf
    got, wanted = got.float(), wanted.float()
    unused = wanted.isnan()
    if not torch.equal(got.isnan(), unused) or got.numel() == 0:
        return math.inf if got.numel() else 0.0
    got, wanted = got.masked_fill(unused, 0.0), wanted.masked_fill(unused, 0.0)
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


def norms(make: Maker, rows: int, width: int) -> Iterator[Case]:
    x, weight = make.numbers(rows, width + 3)[:, :width], make.wide(width)
    pair = (norm.rms_norm_triton, norm.rms_norm_reference)
    size = rows * width * make.dtype.itemsize
    yield Case("norm", *pair, (x, weight, 1e-5), bytes=2 * size)
    residual = {"residual": make.numbers(rows, width)}
    yield Case("norm of a sum", *pair, (x, weight, 1e-5), residual, bytes=4 * size)
    after = {**residual, "after": (make.wide(width), 1e-6)}
    yield Case("norm of a sum with a norm", *pair, (x, weight, 1e-5), after, bytes=4 * size)
    pair = (norm.layer_norm_triton, norm.layer_norm_reference)
    for bias in (None, make.wide(width)):
        yield Case("layer norm", *pair, (x, weight, bias, 1e-5), residual, bytes=4 * size)


def activation(make: Maker, rows: int, width: int, rule: Activation) -> Case:
    pair = (activations.activate_triton, activations.activate_reference)
    size = rows * width * make.dtype.itemsize
    args = (make.numbers(rows, 2 * width) * 3, rule)
    return Case(f"activation {rule.kind}", *pair, args, bytes=3 * size)


def _angles(make: Maker, positions: int, half: int) -> tuple[Tensor, Tensor]:
    angles = make.wide(positions, half) * 3
    return angles.cos(), angles.sin()


def heads(
    make: Maker,
    rows: int,
    hq: int,
    hk: int,
    d: int,
    *,
    dv: int | None = None,
    rotary: int | None = None,
    norm: str = "before",
    bias: bool = False,
    factors: bool = False,
    tokens: int = 16,
) -> Case:
    """Rotates keys and queries, and stores keys and values in KV blocks; one row in five is not
    stored.
    """
    dv = dv or d
    width = (hq + hk) * d + hk * dv
    blocks = rows // tokens + 2
    k, v = pools(make, blocks, hk, tokens, d, dv)
    slots = torch.randperm(blocks * tokens, generator=make.generator, device=make.device)[:rows]
    slots[::5] = -1
    weights = (make.wide(d), make.wide(d)) if norm else (None, None)
    rule = Heads(hq, hk, d, *weights, 1e-6, norm == "after", make.numbers(width) if bias else None)
    cos, sin = _angles(make, 50, rotary // 2) if rotary else (None, None)
    positions = make.integers(0, 50, rows)
    args = (make.numbers(rows, width), rule, positions, cos, sin, slots.int(), k, v)
    return Case(
        "rotation and store",
        rotation.rotate_and_store_triton,
        rotation.rotate_and_store_reference,
        (*args, make.wide(rows) if factors else None),
        written=(6, 7),
        bytes=2 * rows * width * make.dtype.itemsize,
    )


def rotated(make: Maker, rows: int, count: int, d: int, rotary: int) -> Case:
    """Rotates a part of each head, and writes to a part of another tensor's heads."""
    cos, sin = _angles(make, 50, rotary // 2)
    x, out = make.numbers(2, rows, count, d + 8)[..., 8:]
    args = (x, make.integers(0, 50, rows), cos, sin, out)
    pair = (rotation.rotate_triton, rotation.rotate_reference)
    size = 2 * rows * count * d * make.dtype.itemsize
    return Case("rotation", *pair, args, written=(4,), bytes=size)


def latents(make: Maker, rows: int, rank: int, rope: int, tokens: int = 16) -> Case:
    cos, sin = _angles(make, 50, rope // 2)
    blocks = rows // tokens + 2
    pool = make.numbers(blocks, 3, tokens, rank + rope).fill_(math.nan)[:, 1]
    slots = torch.randperm(blocks * tokens, generator=make.generator, device=make.device)[:rows]
    slots[::5] = -1
    rows_of = (make.numbers(rows, rank + rope), make.wide(rank), 1e-6)
    args = (*rows_of, make.integers(0, 50, rows), cos, sin, slots.int(), pool)
    pair = (rotation.store_latent_triton, rotation.store_latent_reference)
    size = 2 * rows * (rank + rope) * make.dtype.itemsize
    return Case("store of latents", *pair, args, written=(7,), bytes=size)


def pools(
    make: Maker, blocks: int, hk: int, tokens: int, d: int, dv: int, layers: int = 2
) -> tuple[Tensor, Tensor]:
    """Views for K and V of the last layer in a pool of KV blocks [block][head][layer][K |
    V][token][width], which is full of NaN.
    """
    shape = (blocks, hk, layers, tokens * (d + dv))
    pool = torch.full(shape, math.nan, dtype=make.dtype, device=make.device)[:, :, -1]
    strides = pool.stride()[:2]
    k = pool.as_strided((blocks, hk, tokens, d), (*strides, d, 1), pool.storage_offset())
    offset = pool.storage_offset() + tokens * d
    return k, pool.as_strided((blocks, hk, tokens, dv), (*strides, dv, 1), offset)


def tables(make: Maker, lengths: Sequence[int], tokens: int) -> tuple[Tensor, int]:
    """(block tables, number of blocks). Block numbers are shuffled, and -1 follows the last block
    of each sequence.
    """
    counts = [-(-length // tokens) for length in lengths]
    count = sum(counts) + 2
    order = torch.randperm(count, generator=make.generator, device=make.device).int()
    made = torch.full((len(lengths), max(*counts, 1) + 1), -1, dtype=torch.int32)
    made, first = made.to(make.device), 0
    for row, own in enumerate(counts):
        made[row, :own] = order[first : first + own]
        first += own
    return made, count


def _fill(make: Maker, table: Tensor, lengths: Sequence[int], views: Sequence[Tensor]) -> None:
    """Fill the KV of the sequences' tokens with numbers; NaN stays elsewhere. `views`: [blocks,
    heads, tokens, width].
    """
    tokens = views[0].shape[2]
    for row, length in enumerate(lengths):
        blocks = table[row, : -(-length // tokens)].long()
        for view in views:
            made = make.numbers(len(blocks), view.shape[1], tokens, view.shape[3])
            at = torch.arange(len(blocks) * tokens, device=make.device).view(-1, 1, tokens, 1)
            view[blocks] = made.masked_fill(at >= length, math.nan)


def decodes(
    make: Maker,
    lengths: Sequence[int],
    hq: int,
    hk: int,
    d: int,
    scoring: Scoring,
    *,
    dv: int | None = None,
    tokens: int = 16,
    splits: int | None = None,
    count: int | None = None,
) -> Case:
    """Decode attention. `count`: number of sequences that are computed, as a device tensor."""
    table, blocks = tables(make, lengths, tokens)
    k, v = pools(make, blocks, hk, tokens, d, dv or d)
    _fill(make, table, lengths, (k, v))
    options: dict[str, Any] = {}
    if count is not None:
        out = make.numbers(len(lengths) + 2, hq, dv or d)
        options = {"count": make.index([count]), "out": out}
    args = (make.numbers(len(lengths), hq, d), k, v, table, make.index(lengths), scoring)
    read = sum(min(n, scoring.window or n) for n in lengths) * hk * (d + (dv or d))
    return Case(
        "decode",
        decode.attend_decode_triton,
        decode.attend_decode_reference,
        args,
        options,
        launch_options={"splits": splits},
        bytes=read * make.dtype.itemsize,
        operations=2 * sum(lengths) * hq * (d + (dv or d)),
    )


def prefills(
    make: Maker,
    rows: Sequence[tuple[int, int]],
    hq: int,
    hk: int,
    d: int,
    scoring: Scoring,
    *,
    dv: int | None = None,
    tokens: int = 16,
    padding: int = 0,
    left_out: int | None = None,
) -> Case:
    """Prefill attention. `rows`: (first position, number of rows) of each sequence. The first
    `left_out` sequences are not computed; their number is in a device tensor.
    """
    lengths, counts = [start + n for start, n in rows], [n for _, n in rows]
    table, blocks = tables(make, lengths, tokens)
    k, v = pools(make, blocks, hk, tokens, d, dv or d)
    _fill(make, table, lengths, (k, v))
    offsets = make.index([sum(counts[:i]) for i in range(len(counts) + 1)])
    q, starts = make.numbers(sum(counts) + padding, hq, d), make.index([start for start, _ in rows])
    spans = Spans(offsets, None if left_out is None else make.index([left_out]))
    seen = sum(n * start + n * (n + 1) // 2 for start, n in rows)
    return Case(
        "prefill",
        prefill.attend_prefill_triton,
        prefill.attend_prefill_reference,
        (q, k, v, table, starts, spans, scoring),
        {"max_rows": max(counts)},
        operations=2 * seen * hq * (d + (dv or d)),
    )


def latent_rows(
    make: Maker,
    rows: Sequence[tuple[int, int]],
    hq: int,
    rank: int,
    rope: int,
    *,
    tokens: int = 16,
    splits: int | None = None,
) -> Case:
    lengths = [start + n for start, n in rows]
    table, blocks = tables(make, lengths, tokens)
    pool = torch.full(
        (blocks, 2, tokens, rank + rope), math.nan, dtype=make.dtype, device=make.device
    )[:, 1]
    _fill(make, table, lengths, (pool.unsqueeze(1),))
    positions = [start + i for start, n in rows for i in range(n)]
    sequences = [s for s, (_, n) in enumerate(rows) for _ in range(n)]
    q = make.numbers(len(positions), hq, rank + rope)
    read = sum(at + 1 for at in positions)
    return Case(
        "latent",
        latent.attend_latent_triton,
        latent.attend_latent_reference,
        (q, pool, table, make.index(positions), make.index(sequences)),
        {"value_width": rank, "scale": (rank + rope) ** -0.5},
        launch_options={"splits": splits},
        bytes=read * (rank + rope) * make.dtype.itemsize,
        operations=2 * read * hq * (2 * rank + rope),
    )


def merges(make: Maker, rows: int, hq: int, splits: int, width: int, *, sinks: bool) -> Case:
    """Merges the partial results of attention over splits; some splits have no tokens."""
    sums = make.wide(rows, hq, splits) * 3
    sums[:, :, 1::3] = -math.inf
    parts = make.wide(rows, hq, splits, width)
    sink = make.wide(hq) if sinks else None
    args = (parts, sums, sink, make.numbers(rows, hq, width))
    pair = (merge.merge_splits, merge.merge_splits_reference)
    return Case("merge", *pair, args, written=(3,), bytes=parts.nbytes)


def matrix(
    make: Maker, form: str, experts: int, outputs: int, inputs: int, *, bias: bool
) -> Matrix:
    """A weight matrix with elements of about 1 / sqrt(inputs), so that a product has the scale of
    its input.
    """
    scale, added = inputs**-0.5, make.numbers(experts, outputs) if bias else None
    if form == "plain":
        return Matrix(make.numbers(experts, outputs, inputs) * scale, bias=added)
    if form == "fp8_block":
        codes = torch.empty(experts, outputs, inputs, dtype=torch.uint8, device=make.device)
        for one in codes:
            one.copy_(make.wide(outputs, inputs).to(torch.float8_e4m3fn).view(torch.uint8))
        shape = (experts, -(-outputs // 128), -(-inputs // 128))
        return Matrix(codes, (make.wide(*shape).abs() + 0.5) * scale, added, "fp8_block")
    codes = make.integers(0, 256, experts, outputs, inputs // 2).to(torch.uint8)
    exponent = round(127 + math.log2(scale / 3))
    scales = make.integers(exponent - 1, exponent + 2, experts, outputs, inputs // 32)
    return Matrix(codes, scales.to(torch.uint8), added, "mxfp4")


def _stored(m: Matrix) -> int:
    return m.codes.nbytes + (0 if m.scales is None else m.scales.nbytes)


def mixtures(
    make: Maker,
    form: str,
    rows: int,
    k: int,
    experts: int,
    hidden: int,
    width: int,
    rule: Activation | None = None,
    *,
    bias: bool = False,
    on_input: bool = False,
    elsewhere: bool = False,
    grouped: bool = False,
    widened: int = 0,
) -> Case:
    """Products of experts. `elsewhere`: half as many additional experts belong to another rank.
    `grouped`: use torch's grouped product. `widened`: convert the codes to full numbers first, for
    this number of experts at a time.
    """
    gate_up = matrix(make, form, experts, 2 * width, hidden, bias=bias)
    down = matrix(make, form, experts, hidden, width, bias=bias)
    known = experts + experts // 2 * elsewhere
    indices = torch.argsort(make.wide(rows, known), dim=1)[:, :k].clamp(max=experts).int()
    weights = torch.softmax(make.wide(rows, k), 1)
    args = (make.numbers(rows, hidden), indices, weights, gate_up, down)
    read = len(indices.unique()) / experts * (_stored(gate_up) + _stored(down))
    scratch = None
    if widened:
        scratch = torch.empty(widened * 2 * width * hidden, dtype=make.dtype, device=make.device)
    return Case(
        f"experts {form}{', grouped_mm' if grouped else ''}{', widened' if widened else ''}",
        experts_grouped if grouped else experts_triton,
        experts_reference,
        (*args, rule or Activation("silu")),
        {"weight_on_input": on_input},
        launch_options={"scratch": scratch} if widened else {},
        bytes=int(read),
        operations=2 * rows * k * 3 * hidden * width,
    )


def dense(
    make: Maker,
    form: str,
    rows: int,
    outputs: int,
    inputs: int,
    *,
    bias: bool,
    widened: bool = False,
) -> Case:
    m = matrix(make, form, 1, outputs, inputs, bias=bias)
    only = Matrix(
        m.codes[0],
        None if m.scales is None else m.scales[0],
        None if m.bias is None else m.bias[0],
        m.form,
    )
    return Case(
        f"product {form}{', widened' if widened else ''}",
        linear_widened if widened else linear_triton,
        linear_reference,
        (make.numbers(rows, inputs), only),
        bytes=_stored(m),
        operations=2 * rows * outputs * inputs,
    )


def widenings(make: Maker, form: str, experts: int, outputs: int, inputs: int) -> Case:
    """Converts the quantised codes of all experts but the first to full numbers."""
    m = matrix(make, form, experts, outputs, inputs, bias=False)
    scratch = torch.empty(experts * outputs * inputs, dtype=make.dtype, device=make.device)
    return Case(
        f"widening {form}",
        widen_triton,
        widen_reference,
        (m, range(1, experts), scratch),
        bytes=(_stored(m) + scratch.nbytes) * (experts - 1) // experts,
    )


def checksums(make: Maker, *counts: int) -> Case:
    """Checksums of several memories. `counts`: number of 8-byte words in each."""
    words = [make.integers(-(2**31), 2**31 - 1, 2 * count) for count in counts]
    pair = (remainders_triton, remainders_reference)
    return Case("checksum", *pair, (tuple(words),), bytes=8 * sum(counts))
