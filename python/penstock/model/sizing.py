"""Sizes of a decoder's weights and KV, as a whole or for one rank, computed from its spec.

The matrices are the ones that a backend loads. `penstock plan` uses them before any weights exist.
A test keeps them equal to the native decoder's report after loading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from penstock.core import KvGroup, KvSpec
from penstock.model.kv_groups import kv_groups
from penstock.model.sharding import Grid, plan_grid
from penstock.model.spec import (
    Attention,
    CachedAttention,
    DecoderSpec,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Mlp,
    Norm,
    Norms,
    ShortConvolution,
)

Part = Literal["embedding", "head", "attention", "dense", "experts", "shared", "router", "vectors"]
"""Part of the model to which a matrix belongs. `vectors`: norms, biases and other small tensors,
which are never quantised.
"""
PANEL = 16
"""Number of outputs that are packed together. The size of heads in the KV pool is padded to a
multiple of it.
"""
GROUP = 32
"""Number of inputs that share a quantisation scale."""
FORMS = {
    "f32": (32, 0),
    "bf16": (16, 0),
    "w8": (8, 2),
    "w4": (4, 4),
    "s4": (4, 2),
    "z4": (4, 3),
    "mx4": (4, 1),
}
"""Packed formats of the native decoder: bits per weight, and bytes of the scale, minimum and zero
point per group of inputs.
"""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A rank's share of one matrix, or of each of `copies` equal matrices."""

    part: Part
    role: str
    """Role in the weight recipes."""
    layer: int | None
    """Index of the layer; None for matrices outside the layers."""
    outputs: int
    inputs: int
    copies: int = 1
    active: int | None = None
    """Number of copies that a token reads (of experts); None for all."""

    @property
    def numbers(self) -> int:
        return self.outputs * self.inputs * self.copies

    def packed(self, form: str) -> int:
        """Size in bytes in a packed format of the native decoder."""
        bits, group_bytes = FORMS[form]
        padded = _up(self.outputs, PANEL) * _up(self.inputs, GROUP)
        return self.copies * (padded * bits // 8 + padded // GROUP * group_bytes)


def matrices(spec: DecoderSpec, grid: Grid, rank: int) -> list[Matrix]:
    """All matrices of a rank. Layers that are one object are processed once."""
    share, own = _Share(spec, grid, rank), _own_layers(grid, rank)
    kinds = {id(spec.layers[i]): spec.layers[i] for i in own}
    found = {key: list(_layer(share, layer)) for key, layer in kinds.items()}
    layers = (replace(matrix, layer=i) for i in own for matrix in found[id(spec.layers[i])])
    return [*layers, *_outside(spec, share, grid, rank)]


def counted(spec: DecoderSpec, grid: Grid, rank: int) -> list[tuple[Matrix, int]]:
    """A rank's matrices without repetition, each with the number of its occurrences. Layers that
    are one object are processed once.
    """
    share = _Share(spec, grid, rank)
    own = [spec.layers[i] for i in _own_layers(grid, rank)]
    counts = Counter(map(id, own))
    kinds = {id(layer): layer for layer in own}
    found = [
        (matrix, counts[key]) for key, layer in kinds.items() for matrix in _layer(share, layer)
    ]
    return [*found, *((matrix, 1) for matrix in _outside(spec, share, grid, rank))]


def _own_layers(grid: Grid, rank: int) -> range:
    stage = rank // grid.tp
    return range(grid.layers[stage], grid.layers[stage + 1])


def _outside(spec: DecoderSpec, share: _Share, grid: Grid, rank: int) -> Iterator[Matrix]:
    """Matrices outside the layers."""
    stage = rank // grid.tp
    first, last = stage == 0, stage == grid.pp - 1
    rows = _width(grid.vocab, share.rank)
    if first or (last and spec.tied_embeddings):
        yield Matrix("embedding", "embed", None, rows, spec.hidden)
    if first and spec.learned_positions:
        yield Matrix("vectors", "positions", None, spec.max_position, spec.hidden)
    if last and not spec.tied_embeddings:
        yield Matrix("head", "head", None, rows, spec.hidden)
    if last and spec.labels:
        yield Matrix("vectors", "score", None, spec.labels, spec.hidden)
    if last:
        yield _vector("final_norm", _norm(spec.final_norm, spec.hidden))


def whole(spec: DecoderSpec) -> list[Matrix]:
    """All matrices of the model."""
    return matrices(spec, plan_grid(spec, 1, 1), 0)


def whole_counted(spec: DecoderSpec) -> list[tuple[Matrix, int]]:
    """The matrices of the model as in `counted`."""
    return counted(spec, plan_grid(spec, 1, 1), 0)


def parameters(spec: DecoderSpec) -> int:
    """Number of weights (parameters) of the model. A tied embedding counts once."""
    return sum(matrix.numbers * count for matrix, count in whole_counted(spec))


def active_parameters(spec: DecoderSpec) -> int:
    """Number of weights that a token reads. The embedding contributes only a row, so it counts only
    if it is also the output head.
    """
    return sum(
        matrix.numbers // matrix.copies * (matrix.copies if found is None else found) * count
        for matrix, count in whole_counted(spec)
        if (matrix.part != "embedding" or spec.tied_embeddings)
        for found in (matrix.active,)
    )


def kv_spec(
    spec: DecoderSpec, grid: Grid, rank: int, block_size: int, number_bytes: int = 2
) -> KvSpec:
    """The KV groups of a rank, with the bytes of a block in each. `number_bytes`: bytes per element
    of keys and values.
    """
    share = _Share(spec, grid, rank)

    def block_bytes(layers: tuple[int, ...]) -> int:
        numbers = sum(_kv_numbers(share, spec.layers[i].mixer) for i in layers)
        return block_size * number_bytes * numbers

    return KvSpec(
        block_size,
        tuple(
            KvGroup(group.layers, block_bytes(group.layers), group.window, group.chunked)
            for group in kv_groups(spec, _own_layers(grid, rank))
        ),
    )


def sequence_bytes(groups: KvSpec, tokens: int) -> int:
    """Bytes of KV blocks that a sequence of `tokens` tokens takes on a rank with these groups. A
    group with a window holds at most the window.
    """
    return sum(
        -(-min(tokens, group.window or tokens) // groups.block_size) * group.block_bytes
        for group in groups.groups
    )


def state_bytes(spec: DecoderSpec, grid: Grid, rank: int) -> int:
    """Bytes of a sequence's state (f32) in the rank's layers whose mixers have one, independent of
    its length.
    """
    mixers = (spec.layers[i].mixer for i in _own_layers(grid, rank))
    states = (mixer.state for mixer in mixers if not isinstance(mixer, CachedAttention))
    return sum(4 * -(-state.units // grid.tp) * state.numbers for state in states)


class _Share:
    """The heads and columns of one rank, cut as in the native decoder."""

    def __init__(self, spec: DecoderSpec, grid: Grid, rank: int) -> None:
        self.hidden = spec.hidden
        self.rank = rank % grid.tp
        self.heads = _width(grid.heads, self.rank)
        self.first_head = grid.heads[self.rank]
        self.kv_heads = grid.kv_heads(rank, spec)
        self._grid = grid
        self._widths = spec.widths

    def columns(self, width: int) -> tuple[int, int]:
        """The rank's inner columns of a feed-forward of this width: the first, and the one after
        the last.
        """
        cuts = self._grid.mlp[self._widths.index(width)]
        return cuts[self.rank], cuts[self.rank + 1]

    def experts(self, form: Experts) -> tuple[int, tuple[int, int]]:
        """Number of experts that the rank holds, and its columns of them (the first, and the one
        after the last).
        """
        cuts, width = self._grid.experts, form.expert.intermediate
        return (
            (form.experts, self.columns(width))
            if cuts is None
            else (_width(cuts, self.rank), (0, width))
        )

    def of_state(self, whole: int) -> int:
        """The rank's part of `whole` value heads or channels: the largest of equal shares."""
        return -(-whole // self._grid.tp)


def _layer(share: _Share, layer: Layer) -> Iterator[Matrix]:
    yield from _mixer(share, layer.mixer)
    yield from _feed_forward(share, layer.feed_forward)
    norms = _norms(layer.mixer_norms, share.hidden) + _norms(layer.feed_forward_norms, share.hidden)
    yield _vector("norms", norms)


def _mixer(share: _Share, mixer: Mixer) -> Iterator[Matrix]:
    match mixer:
        case Attention():
            return _attention(share, mixer)
        case LatentAttention():
            return _latent(share, mixer)
        case LinearAttention():
            return _linear(share, mixer)
        case ShortConvolution():
            return _convolution(share, mixer)


def _attention(share: _Share, mixer: Attention) -> Iterator[Matrix]:
    size, value = mixer.head_dim, mixer.value_dim or mixer.head_dim
    heads, kv_heads, hidden = share.heads, _kv_heads(share, mixer), share.hidden
    yield _attended("q", heads * size * (2 if mixer.gate else 1), hidden)
    yield _attended("k", kv_heads * size, hidden)
    yield _attended("v", kv_heads * value, hidden)
    start = share.first_head * value
    yield _attended("o", hidden, _around(start, start + heads * value, mixer.heads * value))
    vectors = 2 * size if mixer.qk_norm else 0
    vectors += heads * size + kv_heads * (size + value) if mixer.qkv_bias else 0
    vectors += hidden if mixer.out_bias else 0
    yield _vector("attention", vectors + (heads if mixer.sinks else 0))


def _latent(share: _Share, mixer: LatentAttention) -> Iterator[Matrix]:
    queries = share.heads * (mixer.plain_dim + mixer.rope_dim)
    if mixer.query_rank:
        yield _attended("q_a", mixer.query_rank, share.hidden)
        yield _attended("q_b", queries, mixer.query_rank)
    else:
        yield _attended("q", queries, share.hidden)
    yield _attended("kv_a", mixer.kv_rank + mixer.rope_dim, share.hidden)
    keys = _attended("k_b", mixer.kv_rank, mixer.plain_dim)
    values = _attended("v_b", mixer.value_dim, mixer.kv_rank)
    yield from (replace(matrix, copies=share.heads) for matrix in (keys, values))
    start, size = share.first_head * mixer.value_dim, mixer.value_dim
    inputs = _around(start, start + share.heads * size, mixer.heads * size)
    yield _attended("o", share.hidden, inputs)
    yield _vector("attention", mixer.kv_rank + (mixer.query_rank or 0))


def _linear(share: _Share, mixer: LinearAttention) -> Iterator[Matrix]:
    heads = share.of_state(mixer.value_heads)
    keys = -(-mixer.key_heads * heads // mixer.value_heads) * mixer.key_dim
    values = heads * mixer.value_dim
    yield _attended("in", 2 * keys + 2 * values + mixer.scalars * heads, share.hidden)
    yield _attended("out", share.hidden, values)
    yield _vector("attention", (2 * keys + values) * mixer.kernel + 2 * heads + mixer.value_dim)


def _convolution(share: _Share, mixer: ShortConvolution) -> Iterator[Matrix]:
    channels = share.of_state(mixer.units) * (mixer.channels // mixer.units)
    for role in ("conv_b", "conv_c", "conv_x"):
        yield _attended(role, channels, share.hidden)
    yield _attended("conv_out", share.hidden, channels)
    biases = 4 * channels + share.hidden if mixer.bias else 0
    yield _vector("attention", channels * mixer.kernel + biases)


def _feed_forward(share: _Share, form: FeedForward) -> Iterator[Matrix]:
    if isinstance(form, Mlp):
        yield from _mlp("dense", share, form, share.columns(form.intermediate))
        return
    count, columns = share.experts(form)
    for matrix in _mlp("experts", share, form.expert, columns):
        expected = count * form.experts_per_token // form.experts
        yield replace(matrix, copies=count, active=max(expected, 1))
    yield Matrix("router", "router", None, form.experts, share.hidden)
    if form.shared:
        cut = share.columns(form.shared.intermediate)
        yield from _mlp("shared", share, form.shared, cut)
    if form.shared_gate:
        yield Matrix("router", "shared_factor", None, 1, share.hidden)
    numbers = (form.router.bias + form.router.correction) * form.experts
    yield _vector("router", numbers)


def _mlp(part: Part, share: _Share, form: Mlp, columns: tuple[int, int]) -> Iterator[Matrix]:
    start, end = columns
    for role in ("gate", "up") if form.kind == "gated" else ("up",):
        yield Matrix(part, role, None, end - start, share.hidden)
    yield Matrix(part, "down", None, share.hidden, _around(start, end, form.intermediate))
    if form.bias:
        inner = (end - start) * (2 if form.kind == "gated" else 1)
        yield _vector(f"{part}_bias", inner + share.hidden)


def _kv_numbers(share: _Share, mixer: Mixer) -> int:
    """Number of elements in the keys and values of one token in one layer on this rank, padded as
    in the pool.
    """
    if isinstance(mixer, LatentAttention):
        return _up(mixer.kv_rank + mixer.rope_dim, PANEL)
    assert isinstance(mixer, Attention)
    value = mixer.value_dim or mixer.head_dim
    return _kv_heads(share, mixer) * (_up(mixer.head_dim, PANEL) + _up(value, PANEL))


def _kv_heads(share: _Share, mixer: Attention) -> int:
    """KV heads that the rank's query heads read."""
    group = mixer.heads // mixer.kv_heads
    return -(-(share.first_head + share.heads) // group) - share.first_head // group


def _norms(norms: Norms, size: int) -> int:
    return sum(_norm(norm, size) for norm in (norms.before, norms.after) if norm)


def _norm(norm: Norm, size: int) -> int:
    return size * (2 if norm.bias else 1)


def _attended(role: str, outputs: int, inputs: int) -> Matrix:
    return Matrix("attention", role, None, outputs, inputs)


def _vector(role: str, numbers: int) -> Matrix:
    return Matrix("vectors", role, None, 1, numbers)


def _around(start: int, end: int, all_inputs: int) -> int:
    """Number of inputs `start` to `end`, extended to whole groups that share a scale."""
    return min(_up(end, GROUP), all_inputs) - start // GROUP * GROUP


def _width(cuts: tuple[int, ...], at: int) -> int:
    return cuts[at + 1] - cuts[at]


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
