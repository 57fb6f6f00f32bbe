"""KV events: what enters and leaves the pool, for gateways that route by it."""

from __future__ import annotations

from array import array
from typing import Protocol


class KvEvents(Protocol):
    """Where they go: `penstock._native.KvEventPublisher`."""

    def stored(self, digest: bytes, parent: bytes | None, tokens: array[int], /) -> None:
        """The block `digest` of `tokens` behind `parent` is in the pool."""

    def removed(self, digest: bytes, /) -> None:
        """The block `digest` has left the pool."""

    def flush(self) -> None:
        """Publish the events since the last call. Never waits."""
