"""Partition of a decoder over a grid of ranks: tensor parallel times pipeline parallel.

Cuts may be uneven. Query heads are cut to minimise the load of the slowest rank. A KV head whose
query heads are on two ranks is replicated (9 heads over 2 ranks are 5 + 4, with the middle KV head
on both). MLP columns are cut in units of 32, because 32 columns share a quantisation scale. Layers
are cut by their cost; the last stage also has the output head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from penstock.core import InvalidValueError
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    FeedForward,
    LinearAttention,
    Mixer,
    Mlp,
    ShortConvolution,
)

COLUMN_UNIT = 32
VOCAB_UNIT = 16
"""The vocabulary is cut in units of 16, because output features are packed in panels of 16."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The cuts of a model over ranks, as ascending cut points from 0 to the whole. Rank r of a
    stage holds query heads `heads[r]` to `heads[r + 1]`, exclusive, and likewise columns (`mlp`),
    vocabulary and experts; stage s holds layers `layers[s]` to `layers[s + 1]`.
    """

    heads: tuple[int, ...]
    mlp: tuple[tuple[int, ...], ...]
    """Cut points of feed-forward columns, for each inner width in `DecoderSpec.widths`."""
    vocab: tuple[int, ...]
    layers: tuple[int, ...]
    experts: tuple[int, ...] | None = None
    """Cut points of experts. None if experts are not divided: every rank then has some columns of
    each expert.
    """

    @property
    def tp(self) -> int:
        return len(self.heads) - 1

    @property
    def pp(self) -> int:
        return len(self.layers) - 1

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def reader(self) -> int:
        """Number of the rank that samples, whose results the engine reads: the first of the last
        stage. Ranks are numbered stage by stage.
        """
        return (self.pp - 1) * self.tp

    def shard(self, rank: int) -> dict[str, object]:
        """The rank's shard, as the JSON object of `penstock_decoder::Shard`."""
        stage, of_stage = divmod(rank, self.tp)
        return {
            "rank": of_stage,
            "stage": [stage, self.pp],
            "layers": [self.layers[stage], self.layers[stage + 1]],
            "heads": list(self.heads),
            "mlp": [list(cuts) for cuts in self.mlp],
            "vocab": list(self.vocab),
            **({} if self.experts is None else {"experts": list(self.experts)}),
        }

    def kv_heads(self, rank: int, spec: DecoderSpec) -> int:
        """Number of KV heads that a rank holds."""
        return _kv_heads(self.heads[rank % self.tp], self.heads[rank % self.tp + 1], _group(spec))

    def describe(self, rank: int, spec: DecoderSpec) -> str:
        """One line that describes a rank's share."""
        stage, of_stage = divmod(rank, self.tp)
        heads = f"heads {_span(self.heads, of_stage)} with {self.kv_heads(rank, spec)} of "
        heads += f"{_heads(spec)[1]} KV heads"
        parts = [
            f"layers {_span(self.layers, stage)}",
            heads,
            f"MLP columns {' and '.join(_span(cuts, of_stage) for cuts in self.mlp)}",
        ]
        if self.experts is not None:
            parts.append(f"experts {_span(self.experts, of_stage)}")
        if stage == 0:
            parts.append("embedding")
        if stage == self.pp - 1:
            parts.append("head")
        return f"rank {rank}: {', '.join(parts)}"


def plan_grid(spec: DecoderSpec, tp: int, pp: int, *, by_experts: bool = False) -> Grid:
    """The best cuts for `tp` ranks in each of `pp` stages. Raises InvalidValueError for too many
    ranks. `by_experts`: ranks hold whole experts instead of columns of all experts.
    """
    experts = spec.experts if by_experts else None
    most = min(_heads(spec)[0], *spec.widths, spec.vocab, experts or spec.vocab)
    if not 1 <= tp <= most:
        raise InvalidValueError(
            "--tensor-parallel-size", tp, f"1 to {most}, the model's attention heads"
        )
    if not 1 <= pp <= len(spec.layers) + 1:
        raise InvalidValueError(
            "--pipeline-parallel-size", pp, f"1 to {len(spec.layers)}, the model's layers"
        )
    return Grid(
        heads=_cut_heads(spec, tp),
        mlp=tuple(_cut_evenly(width, tp, COLUMN_UNIT) for width in spec.widths),
        vocab=_cut_evenly(spec.vocab, tp, VOCAB_UNIT),
        layers=_cut_layers(spec, pp),
        experts=None if experts is None else _cut_evenly(experts, tp, 1),
    )


def _heads(spec: DecoderSpec) -> tuple[int, int]:
    """Query and KV heads; latent attention has one KV head."""
    mixer = spec.first_attention
    return mixer.heads, mixer.kv_heads if isinstance(mixer, Attention) else 1


def _group(spec: DecoderSpec) -> int:
    heads, kv_heads = _heads(spec)
    return heads // kv_heads


def _kv_heads(start: int, end: int, group: int) -> int:
    return -(-end // group) - start // group


def _span(cuts: Sequence[int], at: int) -> str:
    return f"{cuts[at]}-{cuts[at + 1] - 1}" if cuts[at] < cuts[at + 1] else "none"


def _cut_evenly(whole: int, parts: int, unit: int) -> tuple[int, ...]:
    """Cut `whole` items evenly into parts of whole units, of which the last may be short. The unit
    is a single item if there are fewer units than parts.
    """
    unit = unit if -(-whole // unit) >= parts else 1
    units = -(-whole // unit)
    return tuple(min(whole, units * part // parts * unit) for part in range(parts + 1))


def _cut_heads(spec: DecoderSpec, tp: int) -> tuple[int, ...]:
    """Cut query heads so that the most expensive rank costs least: a query head costs its rows of q
    and columns of o; a KV head costs its rows of k and v on every rank that holds it.
    """
    return _cut_groups(_heads(spec)[0], _group(spec), tp)


@cache
def _cut_groups(heads: int, group: int, tp: int) -> tuple[int, ...]:
    each = heads // tp
    if each * tp == heads and (each % group == 0 or group % each == 0):
        return tuple(range(0, heads + 1, each))  # Any other partition has a rank with more heads.

    def cost(start: int, end: int) -> float:
        return 2 * (end - start) + 2 * _kv_heads(start, end, group)

    return _cut(heads, tp, cost, smallest=1)


def _cut_layers(spec: DecoderSpec, pp: int) -> tuple[int, ...]:
    """Cut layers so that the most expensive stage costs least. The cost is the number of weights
    read for each token. The last stage also reads the head.
    """
    hidden = spec.hidden
    each = tuple(
        _projections(layer.mixer, hidden) + hidden * _read(layer.feed_forward)
        for layer in spec.layers
    )
    return _cut_costs(each, hidden * spec.vocab, pp)


@cache
def _cut_costs(each: tuple[int, ...], head: int, pp: int) -> tuple[int, ...]:
    layers, before = len(each), list(accumulate(each, initial=0))

    def cost(start: int, end: int) -> float:
        return before[end] - before[start] + (head if end == layers else 0)

    return _cut(layers, pp, cost, smallest=1 if pp <= layers else 0)


def _projections(mixer: Mixer, hidden: int) -> int:
    """Number of weights in a mixer's projections."""
    if isinstance(mixer, Attention):
        return 2 * (mixer.heads + mixer.kv_heads) * mixer.head_dim * hidden
    if isinstance(mixer, LinearAttention):
        values = mixer.value_heads * mixer.value_dim
        return hidden * (2 * mixer.key_heads * mixer.key_dim + 3 * values)
    if isinstance(mixer, ShortConvolution):
        return hidden * 4 * mixer.channels
    own, made = mixer.plain_dim + mixer.rope_dim, mixer.plain_dim + mixer.value_dim
    query = mixer.query_rank or 0
    queries = query * (hidden + mixer.heads * own) if query else hidden * mixer.heads * own
    latent = hidden * (mixer.kv_rank + mixer.rope_dim) + mixer.kv_rank * mixer.heads * made
    return queries + latent + mixer.heads * mixer.value_dim * hidden


def _read(form: FeedForward) -> int:
    """Number of rows and columns of a feed-forward's matrices, each of hidden size, that a token
    reads.
    """
    if isinstance(form, Mlp):
        return (3 if form.kind == "gated" else 2) * form.intermediate
    shared = 0 if form.shared is None else _read(form.shared)
    return form.experts + form.experts_per_token * _read(form.expert) + shared


def _cut(
    whole: int, parts: int, cost: Callable[[int, int], float], smallest: int
) -> tuple[int, ...]:
    """The cuts that minimise the maximum cost, then the total cost: dynamic programming over the
    last cut. `cost(start, end)` must not decrease when the part grows.
    """

    @cache
    def best(end: int, parts: int) -> tuple[tuple[float, float], tuple[int, ...]]:
        if parts == 1:
            only = cost(0, end)
            return (only, only), (0, end)
        found = None
        for start in range(end - smallest, smallest * (parts - 1) - 1, -1):
            here = cost(start, end)
            if found is not None and here > found[0][0]:
                break  # A longer last part would cost more than the best partition found.
            (most, total), cuts = best(start, parts - 1)
            other = ((max(most, here), total + here), (*cuts, end))
            found = other if found is None else min(found, other)
        assert found is not None
        return found

    return best(whole, parts)[1]
