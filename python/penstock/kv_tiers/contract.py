"""What the tiers behind the pool are asked through."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.core.transfer import Moved, Transfer


class Carrier(Protocol):
    """Moves bytes on every rank: an executor."""

    def transfer(self, transfer: Transfer, /) -> None:
        """Begin, and return at once."""

    def moved(self) -> list[Moved]:
        """Transfers that every rank has answered since the last call."""


class Index(Protocol):
    """Which slot of the RAM tier holds which block: `penstock._native.TierIndex`."""

    def lookup(self, digests: list[bytes], start: int, /) -> list[int]:
        """Slots of the longest run from `start` on that is here; of use are the first `start` too,
        if they are here. Once for each request.
        """

    def peek(self, digests: list[bytes], /) -> int:
        """How many leading ones are here. Not a use."""

    def admit(self, digests: list[bytes], parent: bytes | None, awaited: bool, /) -> list[int]:
        """A slot for each block to store; -1 where it is not worth one, -2 where it has one
        already. `parent` is the block before the first. What is `awaited` need not be worth more
        than what leaves for it.
        """

    def commit(self, digests: list[bytes], /) -> None:
        """These are stored: `lookup` finds them from now on."""

    def abandon(self, digests: list[bytes], /) -> None:
        """These could not be stored."""

    def hold(self, slots: list[int], /) -> None:
        """Keep what is in these slots while it is read."""

    def release(self, slots: list[int], /) -> None: ...

    def remove(self, digests: list[bytes], /) -> int:
        """Forget blocks; those held go when they are released. How many there were."""

    def clear(self, group: bytes | None = None, /) -> int:
        """Forget all, or what a group left."""

    def pin(self, digests: list[bytes], /) -> int:
        """Never give these away, now or once they are here; how many are here. ValueError beyond a
        share.
        """

    def unpin(self, digests: list[bytes], /) -> None: ...

    def stats(self) -> dict[str, Any]:
        """`slots`, `used`, `evictions`, `pinned` and others, as numbers."""

    def curve(self) -> list[tuple[float, float]]:
        """Capacity in slots, hit ratio; ascending."""
