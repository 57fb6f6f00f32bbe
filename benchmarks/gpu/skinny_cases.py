"""Calls of the kernels for products with few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu import cases
from benchmarks.gpu.cases import Case, Maker, matrix
from penstock.backends.torch.kernels import Activation, Beside, Matrix, Rule, activate
from penstock.backends.torch.kernels.experts import experts_reference
from penstock.backends.torch.kernels.mixture import inner_rows_triton, output_rows_triton
from penstock.backends.torch.kernels.router import (
    Router,
    route_rows_reference,
    route_rows_triton,
)
from penstock.backends.torch.kernels.skinny import (
    BUCKETS,
    NARROW,
    WIDE,
    Tiling,
    skinny_product_reference,
    skinny_product_triton,
)

Named = tuple[str, Callable[[], Case]]
SILU = Activation("silu")
WAYS = {"torch": None, "narrow": NARROW, "wide": WIDE}
SHAPES = {
    "qkv": (6144, 4096, None),
    "out": (4096, 4096, None),
    "gate and up": (24576, 4096, SILU),
    "down": (4096, 12288, None),
    "head": (151936, 4096, None),
}
"""Matrix products of Qwen3-8B: (outputs, inputs, activation) by name."""


def products(
    make: Maker,
    rows: int,
    outputs: int,
    inputs: int,
    *,
    bias: bool = False,
    activation: Activation | None = None,
    tiling: Tiling = NARROW,
) -> Case:
    weight = make.numbers(outputs, inputs) * inputs**-0.5
    added = make.numbers(outputs) if bias else None
    return Case(
        "product of a few rows",
        skinny_product_triton,
        skinny_product_reference,
        (make.numbers(rows, inputs), weight, added, activation, tiling),
        bytes=weight.nbytes,
        operations=2 * rows * outputs * inputs,
    )


def layers(
    make: Maker,
    rows: int,
    outputs: int,
    inputs: int,
    *,
    activation: Activation | None = None,
    tiling: Tiling | None = None,
    size: int = 256 << 20,
) -> Case:
    """Products with the matrices of several layers, which in total are larger than the GPU's cache.
    Without a `tiling`, torch computes them.
    """
    count = -(-size // (outputs * inputs * make.dtype.itemsize))
    weights = tuple(make.numbers(outputs, inputs) * inputs**-0.5 for _ in range(count))

    def launch(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        for weight in weights:
            if tiling is not None:
                made = skinny_product_triton(x, weight, None, activation, tiling)
            else:
                made = functional.linear(x, weight)
                made = made if activation is None else activate(made, activation)
        return made

    def reference(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        return skinny_product_reference(x, weights[-1], None, activation)

    return Case(
        f"product of {rows} rows",
        launch,
        reference,
        (make.numbers(rows, inputs), weights),
        bytes=sum(weight.nbytes for weight in weights),
        operations=2 * rows * outputs * inputs * count,
    )


def choices(make: Maker, rows: int, hidden: int, router: Router, experts: int, **more: Any) -> Case:
    """The router's product, followed by the choice of experts."""
    weight = make.numbers(experts + router.gate, hidden) * hidden**-0.5
    made = Router(weight, router.rule, router.chosen, own=router.own, gate=router.gate, **more)
    pair = (route_rows_triton, route_rows_reference)
    return Case("choice", *pair, (make.numbers(rows, hidden), made), bytes=weight.nbytes)


def mixtures(
    make: Maker,
    form: str,
    rows: int,
    k: int,
    experts: int,
    hidden: int,
    width: int,
    activation: Activation | None = None,
    *,
    bias: bool = False,
    on_input: bool = False,
    elsewhere: bool = False,
    gate: bool | None = None,
) -> Case:
    """Experts with few rows. `elsewhere`: half as many additional experts belong to another rank.
    `gate`: whether the shared expert has a gate; None: there is no shared expert.
    """
    gate_up = matrix(make, form, experts, 2 * width, hidden, bias=bias)
    down = matrix(make, form, experts, hidden, width, bias=bias)
    known = experts + experts // 2 * elsewhere
    indices = torch.argsort(make.wide(rows, known), dim=1)[:, :k].clamp(max=experts).int()
    weights = torch.softmax(make.wide(rows, k), 1)
    beside = None
    if gate is not None:
        beside = Beside(make.numbers(rows, hidden), make.wide(rows, 3)[:, 2] if gate else None)
    read = sum(each.codes[0].nbytes for each in (gate_up, down)) * len(indices.unique())
    return Case(
        f"experts {form} of a few rows",
        few_triton,
        experts_reference,
        (make.numbers(rows, hidden), indices, weights, gate_up, down),
        {
            "activation": activation or Activation("silu"),
            "weight_on_input": on_input,
            "beside": beside,
        },
        bytes=read,
        operations=2 * rows * k * 3 * hidden * width,
    )


def few_triton(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    down: Matrix,
    *,
    activation: Activation,
    weight_on_input: bool,
    beside: Beside | None,
) -> Tensor:
    given, on_input = (indices, weights), {"weight_on_input": weight_on_input}
    inner = inner_rows_triton(x, *given, gate_up, activation, **on_input)
    return output_rows_triton(inner, *given, down, **on_input, beside=beside)


ROUTERS = (
    (40, Router(torch.empty(0), Rule("softmax", epsilon=0.0), 3), {}),
    (16, Router(torch.empty(0), Rule("softmax", after_choice=True), 4), {"bias": True}),
    (20, Router(torch.empty(0), Rule("sigmoid", after_choice=True, scale=2.0), 1), {}),
    (
        20,
        Router(torch.empty(0), Rule("sigmoid", groups=4, keep=2, best=2, epsilon=1e-20), 3),
        {"correction": True},
    ),
    (40, Router(torch.empty(0), Rule("softmax"), 3, own=range(7, 29), gate=True), {}),
)
"""(number of experts, router, options) for the routing rules of the model families. The numbers of
experts are not powers of two.
"""


def routers(make: Maker, rows: int, hidden: int) -> list[Case]:
    made = []
    for experts, router, vectors in ROUTERS:
        given = {name: make.wide(experts) * 0.2 for name in vectors}
        made.append(choices(make, rows, hidden, router, experts, **given))
    return made


def real(make: Maker) -> Iterator[Named]:
    """Products of Qwen3-8B and experts of Qwen3-30B-A3B, in each kernel variant."""
    for (name, (outputs, inputs, rule)), rows, way in product(SHAPES.items(), BUCKETS, WAYS):
        more = {"activation": rule, "tiling": WAYS[way]}
        yield (
            f"{name} {outputs}x{inputs}, {rows} rows, {way}",
            lambda n=outputs, k=inputs, r=rows, more=more: layers(make, r, n, k, **more),
        )
    for rows in (1, 2, 4, 8):
        for form in ("plain", "fp8_block", "mxfp4"):
            given = (make, form, rows, 8, 128, 2048, 768)
            yield f"experts {form} {rows}, few", lambda given=given: mixtures(*given)
            yield f"experts {form} {rows}", lambda given=given: cases.mixtures(*given)
        yield f"choice {rows}x128", lambda rows=rows: _router(make, rows)


def _router(make: Maker, rows: int) -> Case:
    return choices(make, rows, 2048, Router(torch.empty(0), Rule("softmax", epsilon=0.0), 8), 128)


def odd(make: Maker) -> Iterator[Named]:
    """Small shapes that reach every option and boundary of these kernels."""
    clamped = Activation("clamped", 2.0, 1.7, 1.0)
    for name, tiling in WAYS.items():
        for rows, outputs, inputs in ((1, 70, 4112), (8, 5, 16), (9, 1000, 2064)):
            given = {"tiling": tiling or NARROW, "bias": tiling is None}
            yield (
                f"product {rows}x{outputs}x{inputs}, {name}",
                lambda r=rows, n=outputs, k=inputs, given=given: products(make, r, n, k, **given),
            )
    for rule in (SILU, clamped):
        given = {"bias": True, "activation": rule, "tiling": WIDE}
        yield (
            f"gated product, {rule.kind}",
            lambda given=given: products(make, 3, 68, 1056, **given),
        )
    for at in range(len(ROUTERS)):
        yield f"choice by rule {at}", lambda at=at: routers(make, 5, 2064)[at]
    for form, (at, more) in product(
        ("plain", "fp8_block", "mxfp4"),
        enumerate(
            (
                {"bias": True, "activation": clamped, "on_input": True},
                {"bias": True, "elsewhere": True, "gate": True},
                {"gate": False},
            )
        ),
    ):
        yield (
            f"experts {form} of few rows, form {at}",
            lambda form=form, more=more: mixtures(make, form, 5, 3, 6, 1056, 544, **more),
        )
