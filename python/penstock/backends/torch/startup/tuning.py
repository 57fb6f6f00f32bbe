"""Choice of the kernels for products with few rows, and of the row count from which quantised
experts are widened, by measurement at start-up.

The time of a product with few rows is the time to read its matrix, at a rate that depends on the
shape, the device and the library's kernel. Each candidate is captured as a graph, like decode
steps, over more layers than the device's cache holds, and replayed a few times. Ranks of a stage
may choose differently: each rank has its own columns, and the all-reduce gives all ranks the same
sums.

Widening writes all elements of a layer, independent of the number of rows; the bfloat16 product is
then faster than one on codes. The break-even point depends on the device and the rows per expert.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.device_lost import is_loss
from penstock.backends.torch.kernels import Activation, Matrix, activate, experts
from penstock.backends.torch.kernels.grouped import widest_tile
from penstock.backends.torch.kernels.skinny import (
    BUCKETS,
    LEAST_BYTES,
    NARROW,
    WIDE,
    Tiling,
    fits,
    skinny_product,
)
from penstock.backends.torch.layers.feed_forward import few_rows, mixture_of_few, mixture_of_many
from penstock.backends.torch.layers.products import FASTER, product_key
from penstock.backends.torch.load.weights import HeadWeights, MixtureWeights, MlpWeights
from penstock.backends.torch.runtime import accelerated, kind_of, runtime
from penstock.backends.torch.step.captures import capture_graph

if TYPE_CHECKING:
    from penstock.backends.torch.layers.model import Model

WAYS: tuple[tuple[str, Tiling], ...] = (("narrow", NARROW), ("wide", WIDE))
READ_BYTES = 256 << 20
"""Bytes of matrices that a measurement reads, so that the cache cannot hold them: twice the largest
L2 cache of a GPU.
"""
REPLAYS = 3
GAIN = 0.98
"""A candidate is chosen only if its time is below this share of torch's time."""
BUDGET_S = 0.2
"""Time limit in seconds for all measurements. Products not measured within it use torch."""
CALLS = 2
"""Number of measurements of each variant of a mixture (from codes, or widened); the shortest
counts.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shape:
    """Matrices of one shape in several layers, measured together, and their name in the log."""

    name: str
    matrices: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    activation: Activation | None


@dataclass(frozen=True, slots=True)
class Contest:
    name: str
    rows: int
    device: torch.device
    key: tuple[object, ...]
    ways: tuple[tuple[str, Any, Callable[[], Tensor]], ...]
    """Candidate kernels, torch's first. Each has a name, the value for `FASTER`, and the work to
    measure.
    """


def tune(model: Model) -> None:
    """Measure the candidates for each product and choose the fastest, beginning with products of a
    single row. On meta tensors or the CPU device, each candidate is launched once and none is
    chosen.
    """
    began, open_ = time.perf_counter(), list(contests(model))
    if not open_:
        return
    found: dict[str, list[str]] = {}
    for contest in sorted(open_, key=lambda each: each.rows):
        if not measured(contest.device):
            for _, _, work in contest.ways:
                work()
            continue
        chosen = found.setdefault(contest.name, [])
        if time.perf_counter() - began > BUDGET_S:
            chosen.append("torch, not measured")
            continue
        name, way = fastest(contest)
        FASTER[contest.key] = way
        chosen.append(name)
    if found:
        ways = "; ".join(f"{name}: {', '.join(chosen)}" for name, chosen in found.items())
        spent = time.perf_counter() - began
        log.info("products of 1, 2, 4.. rows, measured in %.0f ms: %s", spent * 1e3, ways)


def measured(device: torch.device) -> bool:
    """Whether candidates are timed on the device, which requires CUDA graphs."""
    return accelerated(device) and kind_of(device).graph is not None


def fastest(contest: Contest) -> tuple[str, Any]:
    """Name of the fastest candidate, and its value for `FASTER`. Kernels that fail on this device
    are skipped.
    """
    (name, way, work), *others = contest.ways
    best = GAIN * seconds_of(work, contest.device)
    for other in others:
        try:
            seconds = seconds_of(other[2], contest.device)
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) or is_loss(error):
                raise
            what = (contest.name, contest.rows, other[0])
            log.warning("%s of %d rows: %s is left out: %s", *what, error)
            continue
        if seconds < best:
            name, way, best = other[0], other[1], seconds
    return name, way


def seconds_of(work: Callable[[], Tensor], device: torch.device) -> float:
    """Seconds that `work` takes as a graph, in the fastest of several replays."""
    replay = capture_graph(work, device)
    events = [runtime(device).Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    events[0].record()
    for event in events[1:]:
        replay()
        event.record()
    events[-1].synchronize()
    pairs = itertools.pairwise(events)
    return min(float(one.elapsed_time(other)) for one, other in pairs) / 1e3


def contests(model: Model) -> Iterator[Contest]:
    shapes = [*_shapes(model)]
    for rows in BUCKETS:
        for shape in shapes:
            x = _rows(rows, shape.matrices[0], model.dtype)
            if fits(x, shape.matrices[0]):
                yield _of_products(shape, x)
        for alike in _mixtures(model):
            x = _rows(rows, alike[0].router, model.dtype)
            key = few_rows(alike[0], x)
            if key is not None:
                yield _of_mixtures(alike, x, key)


def _rows(rows: int, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Random rows, so that different experts are selected."""
    return torch.randn(rows, weight.shape[1], device=weight.device).to(dtype)


def _of_products(shape: Shape, x: Tensor) -> Contest:
    activation, pairs = shape.activation, list(zip(shape.matrices, shape.biases, strict=True))

    def library() -> Tensor:
        for weight, bias in pairs:
            made = functional.linear(x, weight, bias)
            made = made if activation is None else activate(made, activation)
        return made

    def own(tiling: Tiling) -> Callable[[], Tensor]:
        def work() -> Tensor:
            for weight, bias in pairs:
                made = skinny_product(x, weight, bias, activation, tiling)
            return made

        return work

    gated = activation is not None
    key = product_key(x, shape.matrices[0], shape.biases[0], gated=gated)
    ways = [(name, tiling, own(tiling)) for name, tiling in WAYS]
    return Contest(shape.name, len(x), x.device, key, (("torch", None, library), *ways))


def _of_mixtures(alike: Sequence[MixtureWeights], x: Tensor, key: tuple[object, ...]) -> Contest:
    def by(compute: Callable[[MixtureWeights, Tensor], Tensor]) -> Callable[[], Tensor]:
        def work() -> Tensor:
            for weights in alike:
                made = compute(weights, x)
            return made

        return work

    ways = (("torch", None, by(mixture_of_many)), ("few", True, by(mixture_of_few)))
    count, _, hidden = alike[0].inner.codes.shape
    return Contest(f"{count} experts of {hidden}", len(x), x.device, key, ways)


def _shapes(model: Model) -> Iterator[Shape]:
    """Matrices of the layers and the head of at least LEAST_BYTES, grouped by shape."""
    found: dict[tuple[object, ...], list[tuple[str, Tensor, Tensor | None, Activation | None]]] = {}
    for each in _matrices(model):
        _, weight, bias, activation = each
        if weight.nbytes >= LEAST_BYTES:
            found.setdefault((*weight.shape, bias is None, activation), []).append(each)
    for alike in found.values():
        name, weight, _, activation = alike[0]
        some = alike[: _enough(weight.nbytes)]
        size = f"{name} {weight.shape[0]} x {weight.shape[1]}"
        matrices = tuple(each[1] for each in some)
        yield Shape(size, matrices, tuple(each[2] for each in some), activation)


def _enough(size: int) -> int:
    """Number of matrices of `size` bytes that have READ_BYTES together, so that they exceed the
    device's cache.
    """
    return math.ceil(READ_BYTES / size)


def _matrices(model: Model) -> Iterator[tuple[str, Tensor, Tensor | None, Activation | None]]:
    for layer in model.weights.layers:
        own, form = layer.mixer.projections, layer.feed_forward
        if isinstance(own, HeadWeights):
            yield "qkv", own.qkv, None, None
        else:
            yield "latents", own.down, None, None
            if own.query_up is not None:
                yield "queries", own.query_up, None, None
        yield "out", layer.mixer.out, layer.mixer.out_bias, None
        mlp = form if isinstance(form, MlpWeights) else form.shared
        if mlp is not None:
            rule = mlp.activation if mlp.gated else None
            yield from _plain("gate and up" if mlp.gated else "up", mlp.inner, rule)
            yield from _plain("down", mlp.down, None)
    if model.weights.head is not None:
        yield "head", model.weights.head, None, None


def _plain(
    name: str, matrix: Matrix, activation: Activation | None
) -> Iterator[tuple[str, Tensor, Tensor | None, Activation | None]]:
    if matrix.form == "plain":
        yield name, matrix.codes, matrix.bias, activation


def _mixtures(model: Model) -> Iterator[list[MixtureWeights]]:
    found: dict[tuple[object, ...], list[MixtureWeights]] = {}
    for layer in model.weights.layers:
        form = layer.feed_forward
        if isinstance(form, MixtureWeights):
            shapes = (form.router.shape, form.inner.codes.shape, form.down.codes.shape)
            found.setdefault((*shapes, form.inner.form, form.chosen, form.rule), []).append(form)
    for alike in found.values():
        # Bytes that one row reads. With several rows, which select more experts, the cache holds a
        # smaller share.
        read = alike[0].chosen * (alike[0].inner.codes[0].nbytes + alike[0].down.codes[0].nbytes)
        if read >= LEAST_BYTES:
            yield alike[: _enough(read)]


def tune_widening(model: Model, most: int) -> None:
    """Choose the row count from which quantised experts are widened, for steps of up to `most`
    rows. One mixture suffices: all quantised mixtures have the same shapes.
    """
    for layer in model.weights.layers:
        form = layer.feed_forward
        if not isinstance(form, MixtureWeights) or form.widening is None:
            continue
        widening = form.widening
        if widening.memory is not None:
            widening.least_rows = _least_rows(form, widening.memory, most)
            if widening.least_rows is None and measured(widening.memory.device):
                widening.memory = None
        return


def _least_rows(weights: MixtureWeights, scratch: Tensor, most: int) -> int | None:
    """The lowest row count at which widening is faster; None if it never is. Measures steps of
    `most` rows, then half as many, and so on, until widening is no faster. All steps with the same
    number of rows use the same variant, so results are reproducible.
    """
    least = None
    for rows in _filling_rows(weights, most):
        widened = _milliseconds(weights, rows, scratch)
        direct = _milliseconds(weights, rows, None)
        if widened is None or direct is None:
            continue
        log.info("experts of %d rows: %.2f ms from codes, %.2f widened", rows, direct, widened)
        if widened >= direct:
            break
        least = rows
    return least


def _filling_rows(weights: MixtureWeights, most: int) -> list[int]:
    """Row counts to measure, from `most` downwards by halves, at which the average expert fills the
    widest tile. Below that, reading the codes dominates, not the products.
    """
    halves = [most >> power for power in range(most.bit_length())]
    count = len(weights.own)
    return [rows for rows in halves if widest_tile(rows * weights.chosen, count)]


def _milliseconds(weights: MixtureWeights, rows: int, scratch: Tensor | None) -> float | None:
    """Milliseconds of an experts' step on a GPU, the shortest of CALLS. None on other devices,
    where launches are only recorded or tested.
    """
    _experts_step(weights, rows, scratch)
    device = weights.router.device
    if not measured(device):
        return None
    found = []
    for _ in range(CALLS):
        began, ended = (runtime(device).Event(enable_timing=True) for _ in range(2))
        began.record()
        _experts_step(weights, rows, scratch)
        ended.record()
        ended.synchronize()
        found.append(float(began.elapsed_time(ended)))
    return min(found)


def _experts_step(weights: MixtureWeights, rows: int, scratch: Tensor | None) -> Tensor:
    """The experts' output for `rows` random rows, spread evenly over the experts of all ranks."""
    inner, device = weights.inner, weights.inner.codes.device
    routed = len(weights.router) - weights.shared_gate
    places = torch.arange(rows * weights.chosen, dtype=torch.int32, device=device)
    indices = places.view(rows, -1).remainder_(routed).clamp_(max=len(weights.own))
    factors = torch.ones(rows, weights.chosen, dtype=torch.float32, device=device)
    x = torch.randn(rows, inner.shape[2], dtype=torch.bfloat16, device=device)
    given = (x, indices, factors, inner, weights.down, weights.activation)
    return experts(*given, weight_on_input=weights.weight_on_input, scratch=scratch)
