"""Which slot holds which block, least recently used first out: the contract of `Index` and nothing
clever.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from tests.fakes.contract import require


class FakeIndex:
    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))
        self.entries: OrderedDict[bytes, int] = OrderedDict()
        self.committed: set[bytes] = set()
        self.held: Counter[int] = Counter()
        self.left: list[bytes] = []
        self.closed = False
        """Whether only what is awaited comes in."""

    def lookup(self, digests: list[bytes], start: int) -> list[int]:
        digests = digests[start:]
        found = []
        for digest in digests:
            if digest not in self.committed:
                break
            found.append(self.entries[digest])
        for digest in reversed(digests[: len(found)]):
            self.entries.move_to_end(digest)
        return found

    def peek(self, digests: list[bytes]) -> int:
        missing = (at for at, digest in enumerate(digests) if digest not in self.committed)
        return next(missing, len(digests))

    def admit(self, digests: list[bytes], parent: bytes | None, awaited: bool) -> list[int]:
        return [-1 if self.closed and not awaited else self._admit(digest) for digest in digests]

    def _admit(self, digest: bytes) -> int:
        if digest in self.entries:
            return -2
        if not self.free:
            victims = (
                d for d, slot in self.entries.items() if d in self.committed and not self.held[slot]
            )
            victim = next(victims, None)
            if victim is None:
                return -1
            self.remove([victim])
        self.entries[digest] = self.free.pop()
        return self.entries[digest]

    def commit(self, digests: list[bytes]) -> None:
        self.committed.update(digests)

    def abandon(self, digests: list[bytes]) -> None:
        for digest in digests:
            require(digest not in self.committed, "what is committed is not abandoned")
            self.free.append(self.entries.pop(digest))

    def hold(self, slots: list[int]) -> None:
        for slot in slots:
            require(slot in self.entries.values(), f"slot {slot} is held and holds nothing")
        self.held.update(slots)

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            require(self.held[slot] > 0, f"slot {slot} is released and was not held")
        self.held.subtract(slots)

    def remove(self, digests: list[bytes]) -> int:
        gone = [digest for digest in digests if digest in self.entries]
        for digest in gone:
            self.free.append(self.entries.pop(digest))
            if digest in self.committed:
                self.left.append(digest)
            self.committed.discard(digest)
        return len(gone)

    def clear(self, group: bytes | None = None) -> int:
        return self.remove([digest for digest in self.entries if digest.startswith(group or b"")])

    def take_left(self) -> list[bytes]:
        left, self.left = self.left, []
        return left

    def pin(self, digests: list[bytes]) -> int:
        return self.peek(digests)

    def unpin(self, digests: list[bytes]) -> None: ...

    def stats(self) -> dict[str, int]:
        used = len(self.entries)
        return {"slots": used + len(self.free), "used": used, "evictions": 0, "pinned": 0}
