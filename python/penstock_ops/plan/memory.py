"""Memory of each rank of a deployment (weights, engine, KV), and how many tokens fit."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.core import KvSpec
from penstock.model.sizing import Matrix, Part, sequence_bytes
from penstock.model.spec import DecoderSpec
from penstock_ops.plan.cut import Cut, Share, Shares
from penstock_ops.plan.engines import Engine, Load
from penstock_ops.plan.hardware import Accelerator
from penstock_ops.plan.lines import Line, human
from penstock_ops.plan.weights import KV_BYTES, PARTS, WeightTypes


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The memory of one rank in bytes."""

    rank: int
    total: int
    """All memory of the rank's device; on CPUs, an equal share of the machine's memory."""
    weights: int
    engine: tuple[Line, ...]
    """Memory for everything except weights and KV, such as activations."""
    kv: KvSpec
    state: int
    """Bytes of the state of each sequence in layers with a state instead of KV."""
    parts: tuple[Line, ...]
    """Bytes of the weights by part of the model."""

    @property
    def room(self) -> int:
        """Bytes that remain for KV; negative if weights and engine do not fit."""
        return self.total - self.weights - sum(line.bytes for line in self.engine)

    @property
    def growth(self) -> float:
        """KV bytes for each token of a sequence, in the layers with full attention only."""
        groups = (group.block_bytes for group in self.kv.groups if group.window is None)
        return sum(groups) / self.kv.block_size

    def sequence(self, tokens: int) -> int:
        """Bytes that a sequence of `tokens` tokens needs: KV and state."""
        return sequence_bytes(self.kv, tokens) + self.state

    def sequences(self, tokens: int) -> int:
        """Number of sequences of `tokens` tokens each that fit on this rank."""
        each = self.sequence(tokens)
        return max(self.room, 0) // each if each else 0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of all ranks of a replica. All ranks have KV for equally many tokens, so the rank
    with the least room sets the limit.
    """

    cut: Cut
    ranks: tuple[RankMemory, ...]

    def beside(self, engine: Iterable[Line]) -> Memory:
        """The same memory with an engine's needs on each rank."""
        kept = tuple(engine)
        return Memory(self.cut, tuple(replace(rank, engine=kept) for rank in self.ranks))

    def left(self, loads: Sequence[tuple[int, int]]) -> Memory:
        """The same memory, but without the KV memory that no load needs, which is left to other
        programs. Each of `loads` is a number of sequences and their length in tokens. On each rank
        the largest need counts.
        """
        block = self.ranks[0].kv.block_size

        def lines(rank: RankMemory) -> tuple[Line, ...]:
            need = max(count * rank.sequence(tokens) for count, tokens in loads)
            spare = max(rank.room - need - rank.sequence(block), 0)
            return (*rank.engine, Line("left", spare, "KV that the load does not need", "free"))

        ranks = tuple(replace(rank, engine=lines(rank)) for rank in self.ranks)
        return Memory(self.cut, ranks)

    @property
    def fullest(self) -> RankMemory:
        """The rank with room for the fewest tokens."""
        return min(self.ranks, key=lambda rank: (self._tokens(rank), rank.room, rank.rank))

    @property
    def fits(self) -> bool:
        """Whether weights, engine and at least one KV block fit on every rank."""
        return all(rank.room > rank.sequence(self.ranks[0].kv.block_size) for rank in self.ranks)

    @property
    def kv_tokens(self) -> int:
        """Number of tokens that the replica's KV can hold, counted in the layers with full
        attention. If the model has no such layers: the number of tokens within the windows of all
        sequences that fit.
        """
        if not self.fullest.growth:
            seen = max((group.window or 0 for group in self.fullest.kv.groups), default=0)
            return self.concurrency(seen) * seen
        return max(self._tokens(self.fullest), 0) * self.cut.shares

    def concurrency(self, tokens: int) -> int:
        """Number of sequences of `tokens` tokens each that fit in the replica at once."""
        return min(rank.sequences(tokens) for rank in self.ranks) * self.cut.shares

    def longest(self, limit: int) -> int:
        """Length in tokens of the longest single sequence that fits, in whole blocks, but at most
        `limit`.
        """
        if self.concurrency(limit):
            return limit
        block = self.ranks[0].kv.block_size
        blocks = bisect_left(range(limit // block + 1), 1, key=lambda n: not self._holds(n * block))
        return max(blocks - 1, 0) * block

    def _holds(self, tokens: int) -> bool:
        return tokens == 0 or self.concurrency(tokens) > 0

    @property
    def imbalance(self) -> float:
        """Weight bytes of the rank with the most weights, relative to the mean over ranks; 1 for an
        even cut.
        """
        weights = [rank.weights for rank in self.ranks]
        return max(weights) * len(weights) / max(sum(weights), 1)

    def missing(self, tokens: int) -> list[int]:
        """Bytes that each rank lacks for one sequence of `tokens` tokens; 0 or less where it
        fits.
        """
        return [rank.sequence(tokens) - rank.room for rank in self.ranks]

    def lacking(self, tokens: int) -> str:
        """Explains why one sequence of `tokens` tokens does not fit: the first rank that lacks
        memory, and how much it lacks. Empty if the sequence fits.
        """
        for rank, missing in zip(self.ranks, self.missing(tokens), strict=True):
            if missing > 0:
                return (
                    f"rank {rank.rank} lacks {human(missing)}: weights {human(rank.weights)}, "
                    f"{tokens} tokens {human(rank.sequence(tokens))}, of {human(rank.total)}"
                )
        return ""

    @staticmethod
    def _tokens(rank: RankMemory) -> int:
        size = rank.kv.block_size
        blocks = rank.growth * size
        return int(rank.room // blocks * size) if blocks else 1 << 62


def plan_memory(
    spec: DecoderSpec,
    weights: WeightTypes,
    device: Accelerator,
    cut: Cut,
    engine: Engine,
    load: Load,
    kv: str = "bf16",
) -> Memory:
    """Memory of each rank of a replica: weights, the engine's needs, and room for KV. Raises
    InvalidValueError for more ranks than heads or layers.
    """
    return sized(spec, weights, device, cut, kv).beside(engine.rule(spec, device, cut, load))


def sized(
    spec: DecoderSpec, weights: WeightTypes, device: Accelerator, cut: Cut, kv: str
) -> Memory:
    """As `plan_memory`, but without the engine's memory."""
    shares = Shares(spec, cut)
    ranks = [
        replace(first, rank=rank)
        for alike in shares.alike().values()
        for first in (_rank(shares[alike[0]], weights, device, kv),)
        for rank in alike
    ]
    return Memory(cut, tuple(sorted(ranks, key=lambda rank: rank.rank)))


def _rank(share: Share, weights: WeightTypes, device: Accelerator, kv: str) -> RankMemory:
    parts = part_lines(share.matrices(weights.by_layer), weights)
    return RankMemory(
        share.rank,
        device.memory // (share.cut.size if device.is_cpu else 1),
        sum(line.bytes for line in parts),
        (),
        share.kv(KV_BYTES[kv]),
        share.state(),
        parts,
    )


def part_lines(matrices: Iterable[tuple[Matrix, int]], weights: WeightTypes) -> tuple[Line, ...]:
    """Bytes of the weights by part of the model and number type, each with its formula."""
    numbers = Counter[tuple[Part, str]]()
    sizes = defaultdict[tuple[Part, str], float](float)
    for matrix, count in matrices:
        key = (matrix.part, weights.kind(matrix))
        numbers[key] += matrix.numbers * count
        sizes[key] += weights.size(matrix) * count
    found = []
    for part, kind in sorted(numbers, key=lambda key: PARTS.index(key[0])):
        count, size = numbers[part, kind], sizes[part, kind]
        if count:
            formula = f"{count:,} weights x {size / count:.6g} B ({kind})"
            found.append(Line(part, round(size), formula))
    return tuple(found)
