"""KV events: what enters and leaves the pool and its tiers, for gateways that route by it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol


class KvEvents(Protocol):
    """Where they go: `penstock._native.KvEventPublisher`."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: array[int], /) -> None:
        """The block `digest` of `tokens` behind `parent` is in the pool."""

    def removed(self, digest: bytes, /) -> None:
        """The block `digest` has left the pool."""

    def tier_stored(self, tier: int, kind: int, key: bytes, digests: Sequence[bytes], /) -> None:
        """The tier holds the chunk `key` of the blocks `digests`, which were in the pool; `kind`
        is a TierKind. Said again, it changes nothing.
        """

    def tier_removed(self, tier: int, key: bytes, /) -> None:
        """The tier holds the chunk `key` no more, if it did."""

    def flush(self) -> None:
        """Publish the events since the last call. Never waits."""
