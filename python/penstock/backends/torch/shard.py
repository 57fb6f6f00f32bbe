"""The part of a decoder that one rank holds. `crates/compute/decoder/src/shard.rs` uses the same
split.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from penstock.model.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Shard:
    rank: int
    """Rank in the tensor-parallel group."""
    ranks: int
    embeds: bool
    """Whether this is the first stage, which begins with the embedding."""
    has_head: bool
    """Whether this is the last stage, which ends with the output head."""
    layers: range
    heads: range
    """Query heads."""
    mlp: dict[int, range]
    """Inner columns of feed-forwards that this rank computes, by intermediate width of the
    feed-forward.
    """
    experts: range | None
    """The experts that this rank holds completely. None if it holds some columns of all experts."""
    vocab: range
    vocab_widths: list[int]
    """Number of vocabulary entries on each rank of the stage."""

    def kv_heads(self, group: int) -> range:
        """KV heads that this rank's query heads read; `group` query heads share one."""
        return range(self.heads.start // group, -(-self.heads.stop // group))


def whole(spec: DecoderSpec) -> Shard:
    """The whole decoder on one rank."""
    return Shard(
        rank=0,
        ranks=1,
        embeds=True,
        has_head=True,
        layers=range(len(spec.layers)),
        heads=range(spec.first_attention.heads),
        mlp={width: range(width) for width in spec.widths},
        experts=None,
        vocab=range(spec.vocab),
        vocab_widths=[spec.vocab],
    )


def parse(text: str, spec: DecoderSpec) -> Shard:
    """Parse a shard from `text`, the JSON that `Grid.shard` returns."""
    cuts = json.loads(text)
    rank, (stage, stages) = cuts["rank"], cuts["stage"]

    def own(ends: list[int]) -> range:
        return range(ends[rank], ends[rank + 1])

    return Shard(
        rank=rank,
        ranks=len(cuts["heads"]) - 1,
        embeds=stage == 0,
        has_head=stage + 1 == stages,
        layers=range(*cuts["layers"]),
        heads=own(cuts["heads"]),
        mlp={width: own(ends) for width, ends in zip(spec.widths, cuts["mlp"], strict=True)},
        experts=own(cuts["experts"]) if "experts" in cuts else None,
        vocab=own(cuts["vocab"]),
        vocab_widths=[end - start for start, end in pairwise(cuts["vocab"])],
    )
