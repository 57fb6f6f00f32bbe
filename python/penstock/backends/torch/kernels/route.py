"""Routing: selects each row's experts from the router logits, and sorts rows by expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import (
    jit,
    jit_with_varying,
    launches,
    power,
    tl,
)

_COUNTED = 8192
"""Maximum number of places (rows times experts per row) for the sort kernel. That kernel reads all
places once per expert.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """How experts are selected and weighted: `penstock.model.spec.Router` as kernel parameters."""

    score: Literal["softmax", "sigmoid", "none"]
    after_choice: bool = False
    """Select experts by their logits, and compute scores among the selected ones only."""
    groups: int = 0
    """Number of equal, contiguous groups of experts; 0: no groups."""
    keep: int = 0
    """Number of best groups from which experts are selected."""
    best: int = 1
    """Number of a group's best experts whose scores add up to the group's score."""
    epsilon: float | None = None
    """Added to the sum of a token's expert weights before the weights are divided by it; None:
    weights are not normalised.
    """
    scale: float = 1.0

    @property
    def orders_logits(self) -> bool:
        """Whether logits give the same order as scores. If so, logits are used, because rounding
        may make different scores equal.
        """
        return self.after_choice or (self.score == "softmax" and (not self.groups or self.best < 2))


def route(
    logits: Tensor,
    rule: Rule,
    k: int,
    correction: Tensor | None = None,
    bias: Tensor | None = None,
    own: range | None = None,
) -> tuple[Tensor, Tensor]:
    """For `logits` [rows, experts] f32: experts [rows, k] int32, best first, lower index first
    among equals, and their weights [rows, k] f32.

    `bias` [experts] f32 is added to the logits; `correction` [experts] f32 affects the selection
    but not the weights. With `own`, experts are indices into that range, and `len(own)` stands for
    all others.
    """
    compute = route_triton if launches(logits) else route_reference
    return compute(logits, rule, k, correction, bias, own)


def route_reference(
    logits: Tensor,
    rule: Rule,
    k: int,
    correction: Tensor | None = None,
    bias: Tensor | None = None,
    own: range | None = None,
) -> tuple[Tensor, Tensor]:
    logits = logits.float() if bias is None else logits.float() + bias
    scores = logits if rule.after_choice else _scores(logits, rule)
    choice = logits if rule.orders_logits and correction is None else scores
    if correction is not None:
        choice = choice + correction
    if rule.groups:
        choice = _mask(choice, rule)
    chosen = _largest(choice, k)
    weights = scores.gather(1, chosen)
    if rule.after_choice:
        weights = _scores(weights, rule)
    if rule.epsilon is not None:
        weights = weights / (weights.sum(1, keepdim=True) + rule.epsilon)
    if own is not None:
        elsewhere = (chosen < own.start) | (chosen >= own.stop)
        chosen = (chosen - own.start).masked_fill(elsewhere, len(own))
    return chosen.int(), weights * rule.scale


def _scores(logits: Tensor, rule: Rule) -> Tensor:
    if rule.score == "softmax":
        return torch.softmax(logits, -1)
    return torch.sigmoid(logits) if rule.score == "sigmoid" else logits


def _largest(numbers: Tensor, k: int) -> Tensor:
    """Indices of the k largest numbers. Unlike in `topk`, equal numbers keep their order."""
    return torch.sort(numbers, dim=1, descending=True, stable=True).indices[:, :k]


def _mask(choice: Tensor, rule: Rule) -> Tensor:
    """Scores that decide the selection, with minus infinity for experts outside the selected
    groups.
    """
    rows, experts = choice.shape
    grouped = choice.view(rows, rule.groups, -1)
    best = min(rule.best, grouped.shape[2])
    kept = _largest(grouped.topk(best, dim=2).values.sum(2), rule.keep)
    keep = torch.zeros(rows, rule.groups, dtype=torch.bool, device=choice.device)
    keep.scatter_(1, kept, True)
    return grouped.masked_fill(~keep.unsqueeze(2), -torch.inf).view(rows, experts)


def sort_by_expert(indices: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the places of `indices` [rows, k] by expert (stable). Returns the sorted places [rows *
    k] int32, the end of each expert's range [experts] int32, and the inverse permutation [rows * k]
    int32. Places with index `experts` (experts of other ranks) come after the last end.
    """
    if launches(indices) and indices.numel() <= _COUNTED:
        return sort_by_expert_triton(indices, experts)
    return sort_by_expert_reference(indices, experts)


def sort_by_expert_reference(indices: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    ordered, order = torch.sort(indices.flatten(), stable=True)
    each = torch.arange(experts, device=indices.device, dtype=ordered.dtype)
    ends = torch.searchsorted(ordered, each, right=True)
    places = torch.arange(len(order), device=indices.device, dtype=torch.int32)
    return order.int(), ends.int(), torch.empty_like(places).index_copy_(0, order, places)


def route_triton(
    logits: Tensor,
    rule: Rule,
    k: int,
    correction: Tensor | None = None,
    bias: Tensor | None = None,
    own: range | None = None,
) -> tuple[Tensor, Tensor]:
    rows, experts = logits.shape
    indices = torch.empty(rows, k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, k, dtype=torch.float32, device=logits.device)
    if rows:
        _route[(rows,)](
            *(logits, logits if correction is None else correction),
            *(logits if bias is None else bias, indices, weights),
            *(logits.stride(0), 0.0 if rule.epsilon is None else rule.epsilon, rule.scale),
            **choice_constants(rule, experts, k, own),
            CORRECTED=correction is not None,
            BIAS=bias is not None,
            BY_LOGIT=rule.orders_logits and correction is None,
            num_warps=1 if experts <= 256 else 4,
        )
    return indices, weights


def choice_constants(rule: Rule, experts: int, k: int, own: range | None) -> dict[str, Any]:
    return {
        "EXPERTS": experts,
        "K": k,
        "SCORE": rule.score,
        "AFTER": rule.after_choice,
        "FIRST": 0 if own is None else own.start,
        "OWN": experts if own is None else len(own),
        "GROUPS": rule.groups,
        "KEEP": rule.keep,
        "BEST": rule.best,
        "NORMALISED": rule.epsilon is not None,
        "BLOCK": power(experts, 2),
        "BLOCK_K": power(k, 2),
        "BLOCK_G": power(max(rule.groups, 1)),
    }


@jit
def _scored(numbers, own, SCORE: tl.constexpr):
    if SCORE == "softmax":
        numbers = tl.where(own, numbers, float("-inf"))
        numbers = tl.exp(numbers - tl.max(numbers, 0))
        numbers = numbers / tl.sum(numbers, 0)
    elif SCORE == "sigmoid":
        numbers = 1.0 / (1.0 + tl.exp(-numbers))
    return numbers


@jit
def _kept(
    choice,
    e,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    KEEP: tl.constexpr,
    BEST: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """Scores that decide the selection, with minus infinity for experts outside the selected
    groups.
    """
    group, g = e // (EXPERTS // GROUPS), tl.arange(0, BLOCK_G)
    scores = tl.full([BLOCK_G], float("-inf"), tl.float32)
    for i in tl.static_range(GROUPS):
        left, score = tl.where(group == i, choice, float("-inf")), 0.0
        for _ in tl.static_range(BEST):
            score += tl.max(left, 0)
            left = tl.where(e == tl.argmax(left, 0), float("-inf"), left)
        scores = tl.where(g == i, score, scores)
    kept = group < 0
    for _ in tl.static_range(KEEP):
        best = tl.argmax(scores, 0)
        kept = kept | (group == best)
        scores = tl.where(g == best, float("-inf"), scores)
    return tl.where(kept, choice, float("-inf"))


@jit
def choose(
    logit,
    row,
    correction,
    bias,
    indices,
    weights,
    epsilon,
    scale,
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
):
    """Select experts for a row with logits [BLOCK] f32, and store the result."""
    e, at = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    own = e < EXPERTS
    if BIAS:
        logit += tl.load(bias + e, mask=own, other=0.0).to(tl.float32)
    scores = logit
    if not AFTER:
        scores = _scored(logit, own, SCORE)
    choice = scores
    if BY_LOGIT:
        choice = logit
    if CORRECTED:
        choice += tl.load(correction + e, mask=own, other=0.0).to(tl.float32)
    # NaN ranks lowest.
    choice = tl.where(own & (choice == choice), choice, float("-inf"))
    if GROUPS > 0:
        choice = _kept(choice, e, EXPERTS, GROUPS, KEEP, BEST, BLOCK_G)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    weight = tl.zeros([BLOCK_K], tl.float32)
    left = own
    for i in tl.static_range(K):
        best = tl.argmax(tl.where(left, choice, float("-inf")), 0)
        left = left & (e != best)
        chosen = tl.where(at == i, best, chosen)
        weight = tl.where(at == i, tl.sum(tl.where(e == best, scores, 0.0), 0), weight)
    if AFTER:
        weight = _scored(weight, at < K, SCORE)
    weight = tl.where(at < K, weight, 0.0)
    if NORMALISED:
        weight = weight / (tl.sum(weight, 0) + epsilon)
    chosen -= FIRST
    chosen = tl.where((chosen >= 0) & (chosen < OWN), chosen, OWN)
    tl.store(indices + row * K + at, chosen, mask=at < K)
    tl.store(weights + row * K + at, weight * scale, mask=at < K)


@jit
def _route(
    logits,
    correction,
    bias,
    indices,
    weights,
    stride,
    epsilon,
    scale,
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
):
    row, e = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    of = logits + row * stride + e
    logit = tl.load(of, mask=e < EXPERTS, other=float("-inf")).to(tl.float32)
    choose(
        logit,
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


def sort_by_expert_triton(indices: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    count, device = indices.numel(), indices.device
    order = torch.empty(count, dtype=torch.int32, device=device)
    inverse = torch.empty_like(order)
    ends = torch.empty(experts, dtype=torch.int32, device=device)
    _sort[(experts + 1,)](
        *(indices.contiguous(), order, inverse, ends, count, experts),
        BLOCK=1024,
        num_warps=4,
    )
    return order, ends, inverse


@jit_with_varying("count")
def _sort(indices, order, inverse, ends, count, experts, BLOCK: tl.constexpr):
    """One program per expert: writes the places that selected this expert, after the places of all
    lower experts.
    """
    expert, n = tl.program_id(0), tl.arange(0, BLOCK)
    first, own = 0, 0
    for at in range(0, count, BLOCK):
        other = tl.load(indices + at + n, mask=at + n < count, other=2147483647)
        first += tl.sum((other < expert).to(tl.int32), 0)
    for at in range(0, count, BLOCK):
        other = tl.load(indices + at + n, mask=at + n < count, other=2147483647)
        mine = (other == expert).to(tl.int32)
        place = first + own + tl.cumsum(mine, 0) - 1
        tl.store(order + place, at + n, mask=mine > 0)
        tl.store(inverse + at + n, place, mask=mine > 0)
        own += tl.sum(mine, 0)
    if expert < experts:
        tl.store(ends + expert, first + own)
