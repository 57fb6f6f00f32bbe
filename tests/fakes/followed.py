"""The plainest follower of KV events."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence


class Followed:
    """Digests of blocks with the tokens up to their ends, and which tiers have which chunks. What
    is in a tier was in the pool before, so its tokens are known.
    """

    def __init__(self) -> None:
        self.blocks: dict[bytes, array[int]] = {}
        """In the pool."""
        self.tiers: dict[int, dict[bytes, tuple[bytes, ...]]] = defaultdict(dict)
        """Blocks of the chunks of each tier, by its number."""
        self.past: dict[bytes, array[int]] = {}
        self.batches = 0

    def stored(self, digest: bytes, parent: bytes | None, tokens: array[int], /) -> None:
        before = array("i") if parent is None else self.past[parent]
        self.blocks[digest] = self.past[digest] = before + tokens

    def removed(self, digest: bytes, /) -> None:
        self.blocks.pop(digest)

    def tier_stored(self, tier: int, kind: int, key: bytes, digests: Sequence[bytes], /) -> None:
        known = self.blocks.keys() | self.in_tiers()
        assert set(digests) <= known, "a follower knows no tokens of it"
        self.tiers[tier].setdefault(key, tuple(digests))

    def tier_removed(self, tier: int, key: bytes, /) -> None:
        self.tiers[tier].pop(key, None)

    def in_tiers(self) -> set[bytes]:
        """Blocks that any tier has."""
        chunks = (blocks for tier in self.tiers.values() for blocks in tier.values())
        return {digest for blocks in chunks for digest in blocks}

    def flush(self) -> None:
        self.batches += 1
