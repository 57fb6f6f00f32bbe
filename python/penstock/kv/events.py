"""KV events: blocks that enter or leave the pool and its tiers, for prefix-aware routing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol


class KvEvents(Protocol):
    """Sink of KV events: `penstock._native.KvEventPublisher`."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: array[int], /) -> None:
        """The pool has block `digest` with these `tokens`. `parent` is the preceding block; None
        for the first block.
        """

    def removed(self, digest: bytes, /) -> None:
        """Block `digest` has left the pool."""

    def tier_stored(self, tier: int, kind: int, key: bytes, digests: Sequence[bytes], /) -> None:
        """The tier holds chunk `key`, which consists of the blocks `digests`. Each must have been
        reported as stored in the pool before. `kind` is a TierKind. Idempotent.
        """

    def tier_removed(self, tier: int, key: bytes, /) -> None:
        """The tier no longer holds chunk `key`. Ignored if the chunk was not reported as stored."""

    def flush(self) -> None:
        """Publish the events since the last call. Never blocks."""
