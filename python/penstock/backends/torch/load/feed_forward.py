"""Loads the weights of a layer's feed-forward, dense or a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels import Activation, Matrix, Rule
from penstock.backends.torch.kernels.matrix import LARGEST_EXPONENT
from penstock.backends.torch.load.packed_experts import (
    Cut,
    Form,
    empty_codes,
    fill_codes,
    kept_form,
)
from penstock.backends.torch.load.recipes import FP8_BLOCK, of_expert
from penstock.backends.torch.load.weights import Loader, MixtureWeights, MlpWeights, Roles, needed
from penstock.core import PenstockError
from penstock.model.spec import Experts, FeedForward, Mlp, Recipe, Router


def load_feed_forward(
    loader: Loader, form: FeedForward, roles: Roles
) -> MlpWeights | MixtureWeights:
    if isinstance(form, Experts):
        return _mixture(loader, form, roles)
    return _mlp(loader, form, roles, "")


def _mlp(loader: Loader, form: Mlp, roles: Roles, prefix: str) -> MlpWeights:
    shard, hidden, width = loader.shard, loader.spec.hidden, form.intermediate
    own = shard.mlp[width]
    names = ["gate", "up"] if form.kind == "gated" else ["up"]
    inner = loader.fused([(needed(roles, prefix + name), width, own) for name in names], hidden)
    bias = out_bias = None
    if form.bias:
        parts = (loader.source.vector(needed(roles, f"{prefix}{n}_bias"), width) for n in names)
        bias = torch.cat([part[own.start : own.stop] for part in parts]).to(loader.source.dtype)
        if shard.rank == 0:
            out_bias = loader.source.vector(needed(roles, f"{prefix}down_bias"), hidden)
            out_bias = out_bias.to(loader.source.dtype)
    down = loader.source.matrix(needed(roles, prefix + "down"), hidden, width, cols=own)
    return MlpWeights(
        inner=Matrix(inner, bias=bias),
        gated=form.kind == "gated",
        activation=activation(form),
        down=Matrix(down, bias=out_bias),
    )


def activation(form: Mlp) -> Activation:
    if form.clamp is None:
        return Activation(form.activation)
    if form.kind != "gated" or form.activation != "silu":
        raise PenstockError("the torch backend has no clamped feed-forward of this activation")
    return Activation("clamped", form.clamp.limit, form.clamp.alpha, form.clamp.offset)


def rule(router: Router) -> Rule:
    groups = router.groups
    return Rule(
        score=router.score,
        after_choice=router.after_choice,
        groups=groups.count if groups else 0,
        keep=groups.keep if groups else 0,
        best=2 if groups and groups.by == "top2_sum" else 1,
        epsilon=(router.epsilon or 0.0) if router.normalise else None,
        scale=1.0 if router.scale is None else router.scale,
    )


def _mixture(loader: Loader, moe: Experts, roles: Roles) -> MixtureWeights:
    source, hidden, width = loader.source, loader.spec.hidden, moe.expert.intermediate
    own = loader.shard.experts or range(moe.experts)
    columns = range(width) if loader.shard.experts else loader.shard.mlp[width]
    # If each rank holds columns of all experts, only the first rank adds the bias: the all-reduce
    # must count it once.
    adds_bias = loader.shard.rank == 0 or loader.shard.experts is not None
    correction = None
    if moe.router.correction:
        correction = source.vector(needed(roles, "router_correction"), moe.experts)
    router_bias = None
    if moe.router.bias:
        router_bias = source.vector(needed(roles, "router_bias"), moe.experts)
    router = [source.host_matrix(needed(roles, "router"), moe.experts, hidden)]
    if moe.shared_gate:
        router.append(source.host_vector(needed(roles, "shared_factor"), hidden).unsqueeze(0))
    inner = _stacked(loader, moe, roles, ("gate", "up"), columns)
    down = _stacked_down(loader, moe, roles, columns, adds_bias)
    coded = [matrix for matrix in (inner, down) if matrix.form != "plain"]
    widening = loader.widening if coded and source.dtype == torch.bfloat16 else None
    if widening is not None:
        widening.reserve(*coded)
    return MixtureWeights(
        router=source.on_device(_narrowed(torch.cat(router), source.dtype)),
        router_bias=router_bias,
        rule=rule(moe.router),
        chosen=moe.experts_per_token,
        correction=correction,
        inner=inner,
        down=down,
        activation=activation(moe.expert),
        own=own,
        weight_on_input=moe.router.weight_on_input,
        shared=None if moe.shared is None else _mlp(loader, moe.shared, roles, "shared_"),
        shared_gate=moe.shared_gate,
        widening=widening,
    )


def _narrowed(router: Tensor, dtype: torch.dtype) -> Tensor:
    """Router weights in `dtype`, the type of the activations, if the conversion is exact; else
    unchanged.
    """
    narrow = router.to(dtype)
    return narrow if narrow.is_meta or torch.equal(narrow.float(), router) else router


def _stacked(
    loader: Loader, moe: Experts, roles: Roles, names: tuple[str, ...], columns: range
) -> Matrix:
    """Stacked gate and up projections of this rank's experts, [experts, 2 * columns, hidden]."""
    width, hidden = moe.expert.intermediate, loader.spec.hidden
    cut = Cut(width, hidden, columns, range(hidden))
    bias = None
    if moe.expert.bias:
        recipes = [needed(roles, f"{name}_bias") for name in names]
        each = [_biases(loader, moe, recipe, width) for recipe in recipes]
        bias = torch.cat([part[:, columns.start : columns.stop] for part in each], 1)
    return _experts(loader, moe, [needed(roles, name) for name in names], cut, bias)


def _stacked_down(
    loader: Loader, moe: Experts, roles: Roles, columns: range, adds_bias: bool
) -> Matrix:
    """Stacked output projections of this rank's experts, [experts, hidden, columns]."""
    hidden, bias = loader.spec.hidden, None
    if moe.expert.bias:
        bias = _biases(loader, moe, needed(roles, "down_bias"), hidden) * adds_bias
    cut = Cut(hidden, moe.expert.intermediate, range(hidden), columns)
    return _experts(loader, moe, [needed(roles, "down")], cut, bias)


def _experts(
    loader: Loader, moe: Experts, recipes: list[Recipe], cut: Cut, bias: Tensor | None
) -> Matrix:
    """For each of this rank's experts, concatenate the same part of the matrices `recipes`
    vertically. The result is quantised if all of them can stay quantised.
    """
    source, own = loader.source, loader.shard.experts or range(moe.experts)
    each = [[of_expert(recipe, expert) for recipe in recipes] for expert in own]
    forms = {kept_form(source, recipe, cut) for parts in each for recipe in parts}
    rows = len(cut.rows)
    if len(forms) > 1 or "plain" in forms or not _aligned(forms, rows):
        out = loader.empty(len(own), len(recipes) * rows, len(cut.cols))
        for at, parts in enumerate(each):
            for part, recipe in enumerate(parts):
                target = out[at, part * rows : (part + 1) * rows]
                source.fill(target, recipe, cut.n, cut.k, cut.rows, cut.cols)
        return Matrix(out, bias=bias)
    (form,) = forms
    codes, scales = empty_codes(source, form, cut, len(own), len(recipes))
    for at, parts in enumerate(each):
        for part, recipe in enumerate(parts):
            fill_codes(source, codes[at, part], scales[at, part], recipe, form, cut)
    codes, scales = codes.flatten(1, 2), scales.flatten(1, 2)
    matrix = Matrix(codes, scales, bias, form)
    if form == "mxfp4" and not scales.is_meta:
        source.settle()
        if int(scales.max()) > LARGEST_EXPONENT:
            return Matrix(matrix.dense().to(source.dtype), bias=bias)
    return matrix


def _aligned(forms: set[Form], rows: int) -> bool:
    """True if matrices of `rows` rows can be stacked without splitting a quantisation block."""
    return forms == {"mxfp4"} or rows % FP8_BLOCK == 0


def _biases(loader: Loader, moe: Experts, recipe: Recipe, n: int) -> Tensor:
    """Biases [experts of this rank, n] on the device."""
    own, source = loader.shard.experts or range(moe.experts), loader.source
    each = [source.host_vector(of_expert(recipe, expert), n) for expert in own]
    return source.on_device(torch.stack(each))
