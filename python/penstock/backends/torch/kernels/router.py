"""Router of a mixture of experts for few rows: router logits and expert selection in one kernel.
Several programs compute a row's logits, and the last one to finish selects the experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels.language import ceiling, jit, launches, tl
from penstock.backends.torch.kernels.route import Rule, choice_constants, choose, route_reference
from penstock.backends.torch.kernels.skinny import (
    PADDED_ROWS,
    STAGES,
    Tiling,
    column_sums,
    counters,
    first_column,
)

_TILING = Tiling(16, 4, 128)


@dataclass(frozen=True, slots=True)
class Router:
    """Parameters of expert selection."""

    weight: Tensor
    """[experts, hidden]; with `gate`, the last row is the gate of the shared expert."""
    rule: Rule
    chosen: int
    correction: Tensor | None = None
    """[experts] f32, see `route`."""
    bias: Tensor | None = None
    own: range | None = None
    gate: bool = False

    @property
    def experts(self) -> int:
        return len(self.weight) - self.gate


def route_rows(x: Tensor, router: Router) -> tuple[Tensor, Tensor, Tensor]:
    """Selected experts and weights, as from `route`, for rows `x` [rows, hidden], and the logits
    [rows, experts] f32; with a gate, its logit is the last.
    """
    compute = route_rows_triton if launches(x) else route_rows_reference
    return compute(x, router)


def route_rows_reference(x: Tensor, router: Router) -> tuple[Tensor, Tensor, Tensor]:
    logits = functional.linear(x.float(), router.weight.float())
    rules = (router.rule, router.chosen, router.correction, router.bias, router.own)
    return (*route_reference(logits[:, : router.experts], *rules), logits)


def route_rows_triton(x: Tensor, router: Router) -> tuple[Tensor, Tensor, Tensor]:
    rows, inputs = x.shape
    total, k, rule = len(router.weight), router.chosen, router.rule
    indices = torch.empty(rows, k, dtype=torch.int32, device=x.device)
    weights = torch.empty(rows, k, dtype=torch.float32, device=x.device)
    logits = torch.empty(rows, total, dtype=torch.float32, device=x.device)
    tiles, step = ceiling(total, _TILING.outputs), _TILING.step
    splits = max(1, min(8, ceiling(inputs, step)))
    parts = torch.empty(rows, splits, total, dtype=torch.float32, device=x.device)
    if rows == 0:
        return indices, weights, logits
    correction, bias = router.correction, router.bias
    _route_rows[(tiles, splits, rows)](
        *(x, router.weight, parts, logits, counters(x.device)),
        *(logits if correction is None else correction, logits if bias is None else bias),
        *(indices, weights, x.stride(0), total, inputs),
        *(ceiling(ceiling(inputs, step), splits) * step, tiles * splits),
        *(0.0 if rule.epsilon is None else rule.epsilon, rule.scale),
        SPLITS=splits,
        **choice_constants(rule, router.experts, k, router.own),
        CORRECTED=correction is not None,
        BIAS=bias is not None,
        BY_LOGIT=rule.orders_logits and correction is None,
        GATE=router.gate,
        ROWS=PADDED_ROWS,
        BLOCK_N=_TILING.outputs,
        BLOCK_J=_TILING.inputs,
        PARTS=_TILING.parts,
        STAGES=STAGES,
        num_warps=_TILING.parts,
    )
    return indices, weights, logits


@jit
def _summed(
    parts,
    logits,
    total,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    GATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row's logits: partial sums of several programs, added in a fixed order. The gate's logit is
    stored too.
    """
    e = tl.arange(0, BLOCK)
    sums, gate = tl.zeros([BLOCK], tl.float32), 0.0
    for i in tl.static_range(SPLITS):
        # Bypass the L1 cache, because other programs wrote these values.
        to = parts + i * total
        sums += tl.load(to + e, mask=e < EXPERTS, other=0.0, cache_modifier=".cg")
        if GATE:
            gate += tl.load(to + EXPERTS, cache_modifier=".cg")
    tl.store(logits + e, sums, mask=e < EXPERTS)
    if GATE:
        tl.store(logits + EXPERTS, gate)
    return sums


@jit
def _route_rows(
    x,
    weight,
    parts,
    logits,
    counts,
    correction,
    bias,
    indices,
    weights,
    stride_x,
    total,
    inputs,
    share,
    programs,
    epsilon,
    scale,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    SCORE: tl.constexpr,
    AFTER: tl.constexpr,
    CORRECTED: tl.constexpr,
    BIAS: tl.constexpr,
    FIRST: tl.constexpr,
    OWN: tl.constexpr,
    BY_LOGIT: tl.constexpr,
    GROUPS: tl.constexpr,
    KEEP: tl.constexpr,
    BEST: tl.constexpr,
    NORMALISED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_G: tl.constexpr,
    GATE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_J: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first = split * share
    last = tl.minimum(first + share, inputs)
    sums = column_sums(
        x + row * stride_x,
        0,
        1,
        weight,
        weight,
        n,
        n < total,
        inputs,
        0,
        first,
        last,
        "plain",
        True,
        False,
        ROWS,
        BLOCK_N,
        BLOCK_J,
        PARTS,
        STAGES,
    )
    own = parts + row * SPLITS * total
    tl.store(own + split * total + n, first_column(sums, ROWS), mask=n < total)
    # All stores of the program must be done before it increments the counter.
    tl.debug_barrier()
    if tl.atomic_add(counts + row, 1) == programs - 1:
        e = tl.arange(0, BLOCK)
        logit = _summed(own, logits + row * total, total, SPLITS, EXPERTS, GATE, BLOCK)
        choose(
            tl.where(e < EXPERTS, logit, float("-inf")),
            row,
            correction,
            bias,
            indices,
            weights,
            epsilon,
            scale,
            EXPERTS,
            K,
            SCORE,
            AFTER,
            CORRECTED,
            BIAS,
            FIRST,
            OWN,
            BY_LOGIT,
            GROUPS,
            KEEP,
            BEST,
            NORMALISED,
            BLOCK,
            BLOCK_K,
            BLOCK_G,
        )
        tl.store(counts + row, 0)
