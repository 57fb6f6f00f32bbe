"""Partitions ("cuts") of a model over devices, and the share of the model on each rank."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from penstock.core import InvalidValueError, KvSpec
from penstock.model.sharding import Grid, plan_grid
from penstock.model.sizing import GROUP, Matrix, counted, kv_spec, matrices, state_bytes
from penstock.model.spec import DecoderSpec

BLOCK = 16
"""Tokens in a KV block."""


@dataclass(frozen=True, slots=True, order=True)
class Cut:
    """Partition of one replica: the ranks of a stage share each layer, and the stages share the
    layers. `tp` is the number of ranks in a stage, `pp` the number of stages.
    """

    tp: int
    pp: int
    by_experts: bool = False
    """Expert parallelism: a rank has some experts completely, instead of some columns of every
    expert.
    """
    by_requests: bool = False
    """Data-parallel attention: each rank has all attention weights, and computes attention for its
    own sequences only.
    """

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def shares(self) -> int:
        """Number of ranks in a stage that have different sequences: all with data-parallel
        attention, otherwise 1.
        """
        return self.tp if self.by_requests else 1

    def is_usual(self, per_node: int) -> bool:
        """Whether the ranks of a stage, and those of the replica, are a power of two or fill whole
        nodes of `per_node` devices.
        """
        return all(_is_usual(ranks, per_node) for ranks in (self.tp, self.size))

    def __str__(self) -> str:
        words = f"TP{self.tp}" if self.pp == 1 else f"TP{self.tp} x PP{self.pp}"
        return words + (" EP" if self.by_experts else "") + (" DP" if self.by_requests else "")


def deployed(cut: str, replicas: int, devices: int) -> str:
    """Replicas and partition of a deployment as text; empty for one device."""
    if replicas > 1:
        return f"{replicas} replicas of {cut}"
    return cut if devices > 1 else ""


def _is_usual(ranks: int, per_node: int) -> bool:
    is_power = ranks & (ranks - 1) == 0
    return is_power if ranks < per_node else ranks % per_node == 0


class Share:
    """The part of a partitioned model that one rank has."""

    def __init__(
        self, spec: DecoderSpec, cut: Cut, rank: int, grid: Grid, attention: tuple[Grid, int]
    ) -> None:
        self.cut, self.rank, self._spec = cut, rank, spec
        self._grid, self._attention = grid, attention

    def matrices(self, by_layer: bool = False) -> list[tuple[Matrix, int]]:
        """The rank's weight matrices, each with the number of equal ones. With `by_layer`, the
        matrices of each layer are listed separately. With data-parallel attention, the attention
        matrices are complete.
        """
        take = _apart if by_layer else counted
        kept = take(self._spec, self._grid, self.rank)
        if not self.cut.by_requests:
            return kept
        own = take(self._spec, *self._attention)
        return [pair for pair in kept if pair[0].part != "attention"] + [
            pair for pair in own if pair[0].part == "attention"
        ]

    @property
    def layers(self) -> range:
        """Indices of the layers in the rank's stage."""
        stage = self.rank // self.cut.tp
        return range(self._grid.layers[stage], self._grid.layers[stage + 1])

    def kv(self, number_bytes: int) -> KvSpec:
        return kv_spec(self._spec, *self._attention, BLOCK, number_bytes)

    def state(self) -> int:
        """Bytes of the state of each sequence in layers with a state instead of KV."""
        return state_bytes(self._spec, *self._attention)


def _apart(spec: DecoderSpec, grid: Grid, rank: int) -> list[tuple[Matrix, int]]:
    return [(matrix, 1) for matrix in matrices(spec, grid, rank)]


def grid(spec: DecoderSpec, cut: Cut) -> Grid:
    """The points at which Penstock's engine divides heads, columns, experts and layers. Raises
    InvalidValueError for too many ranks.
    """
    if cut.by_experts and spec.experts is None:
        raise InvalidValueError("--expert-parallel", "", "a mixture of experts")
    return plan_grid(spec, cut.tp, cut.pp, by_experts=cut.by_experts)


class Shares:
    """The shares of all ranks of a replica."""

    def __init__(self, spec: DecoderSpec, cut: Cut) -> None:
        self.spec, self.cut = spec, cut
        self.grid = grid(spec, cut)
        self.attention = grid(spec, Cut(1, cut.pp)) if cut.by_requests else self.grid

    def alike(self) -> dict[tuple[object, ...], list[int]]:
        """Lists of ranks whose shares have equal sizes, by the properties that determine
        the sizes.
        """
        found: dict[tuple[object, ...], list[int]] = {}
        for rank in range(self.cut.size):
            found.setdefault(self._key(rank), []).append(rank)
        return found

    def _key(self, rank: int) -> tuple[object, ...]:
        stage, own = divmod(rank, self.cut.tp)
        cuts = (self.grid.heads, self.grid.vocab, *self.grid.mlp, self.grid.experts or (0, 0))
        widths = (cut[own + 1] - cut[own] if len(cut) > own + 1 else 0 for cut in cuts)
        starts = (cut[own] % GROUP if len(cut) > own else 0 for cut in self.grid.mlp)
        heads = self.grid.heads[own] if not self._even() else 0
        return (stage, *widths, *starts, heads)

    def _even(self) -> bool:
        widths = {b - a for a, b in itertools.pairwise(self.grid.heads)}
        kv = {self.grid.kv_heads(rank, self.spec) for rank in range(self.cut.tp)}
        return len(widths) == len(kv) == 1

    def __getitem__(self, rank: int) -> Share:
        own = rank // self.cut.tp if self.cut.by_requests else rank
        return Share(self.spec, self.cut, rank, self.grid, (self.attention, own))
