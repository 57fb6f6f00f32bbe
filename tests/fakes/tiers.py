"""Tiers without bytes: transfers carry cells of `FakeExecutor`.

A wrong load therefore changes the output or reads a cell that was not computed; violations of the
contract of `Transfer` are refused at once. Nothing moves by itself: the test decides each answer.
"""

from __future__ import annotations

from array import array
from collections import Counter

from penstock.core.transfer import RAM, Fault, Transfer, TransferKind, TransferResult
from tests.fakes.contract import require

DIGEST, GROUP = 32, 4

Cells = tuple[int | None, ...]
"""Bytes of one block."""
Place = tuple[int, int]
"""A KV group and a block of it."""


class FakeMover:
    """`pools` are the cells of the executor, by KV group. `slots` are those of RAM, with a block of
    each group; `tiers[n]` is what tier n + 1 has, by the digest of a chunk's last block and its
    number of blocks. With `auto`, all is answered as it is asked.
    """

    def __init__(
        self,
        pools: list[list[int | None]],
        block_size: int,
        *,
        named: int = 0,
        ram_slots: int = 0,
        auto: bool = False,
    ) -> None:
        self.pools = pools
        self.block_size = block_size
        self.slots: list[tuple[Cells, ...] | None] = [None] * ram_slots
        self.tiers: list[dict[tuple[bytes, int], list[tuple[Cells, ...]]]]
        self.tiers = [{} for _ in range(named)]
        self.auto = auto
        self.left = [b""] * (named + 1)
        """Digests of chunks that tiers evicted, which their next answers name."""
        self.asked: list[Transfer] = []
        """All that was ever submitted."""
        self.loading: set[Place] = set()
        self.storing: Counter[Place] = Counter()
        self._waiting: dict[int, Transfer] = {}
        self.stalled: set[int] = set()
        self._moved: list[TransferResult] = []
        self._last = 0

    # What the executor calls ----------------------------------------------------------------------

    def submit(self, transfer: Transfer) -> None:
        self.asked.append(transfer)
        if transfer.kind == TransferKind.CANCEL:
            self._cancel(transfer.ids)
            return
        self._check(transfer)
        self._lend(transfer)
        self._waiting[transfer.id] = transfer
        if self.auto:
            self.settle()

    def take(self) -> list[TransferResult]:
        moved, self._moved = self._moved, []
        return moved

    def check_plan(self, read: set[Place], written: set[Place]) -> None:
        """The blocks of a plan that are only read, and those that are written to."""
        lent = self.loading & (read | written)
        require(not lent, f"blocks {sorted(lent)} are in a plan while they are loaded")
        lent = written & set(+self.storing)
        require(not lent, f"blocks {sorted(lent)} are written to while they are stored")

    # What the test says
    # -----------------------------------------------------------------------------

    @property
    def waiting(self) -> list[Transfer]:
        """Asked and not answered, the oldest first."""
        return list(self._waiting.values())

    def step(self) -> TransferResult | None:
        """Answer the oldest transfer of those whose tier does not stall."""
        for each in self.waiting:
            if each.tier not in self.stalled:
                return self.complete(each.id)
        return None

    def settle(self) -> list[TransferResult]:
        """Answer all whose tier does not stall."""
        moved = []
        while (each := self.step()) is not None:
            moved.append(each)
        return moved

    def complete(self, transfer_id: int) -> TransferResult:
        """Answer this one, out of its turn perhaps."""
        transfer = self._end(transfer_id)
        moved = self._move(transfer)
        if transfer.kind not in (TransferKind.REMOVE, TransferKind.CLEAR):
            moved.left, self.left[transfer.tier] = self.left[transfer.tier], b""
        return self._answer(moved)

    def fail(
        self,
        transfer_id: int,
        error: str = "the fake tier was told to fail",
        fault: Fault = Fault.FAILED,
    ) -> TransferResult:
        """Answer this one as not done."""
        transfer = self._end(transfer_id)
        if transfer.kind == TransferKind.LOAD:
            self._write(self._entries(transfer), None)
        found = bytes(len(transfer.counts))
        return self._answer(TransferResult(transfer_id, False, found, error=error, fault=fault))

    def _end(self, transfer_id: int) -> Transfer:
        transfer = self._waiting.pop(transfer_id)
        self._return(transfer)
        return transfer

    def stall(self, tier: int) -> None:
        """Transfers of the tier have begun and do not end until `heal`. Only stores can be
        cancelled.
        """
        self.stalled.add(tier)

    def heal(self, tier: int) -> None:
        self.stalled.discard(tier)
        if self.auto:
            self.settle()

    def forget(self) -> None:
        """All tiers lose all."""
        for tier in self.tiers:
            tier.clear()
        self.slots = [None] * len(self.slots)

    def evict(self, tier: int, key: bytes) -> None:
        """A chunk tier makes room."""
        chunks = self.tiers[tier - 1]
        for name in [name for name in chunks if name[0] == key]:
            del chunks[name]
            self.left[tier] += key

    # Movement
    # -----------------------------------------------------------------------------------------

    def _move(self, transfer: Transfer) -> TransferResult:
        if transfer.kind == TransferKind.PROBE:
            tier = self.tiers[transfer.tier - 1]
            chunks = zip(keys(transfer), transfer.counts, strict=True)
            return TransferResult(transfer.id, True, bytes(chunk in tier for chunk in chunks))
        if transfer.kind in (TransferKind.REMOVE, TransferKind.CLEAR):
            for tier in self.tiers:
                for name in [name for name in tier if forgets(transfer, name[0])]:
                    del tier[name]
            return TransferResult(transfer.id, True)
        move = self._move_ram if transfer.tier == RAM else self._move_chunk
        size = 4 * self.block_size * len(self._places(transfer))
        done = move(transfer)
        return TransferResult(transfer.id, done, bytes=size if done else 0, seconds=size * 1e-9)

    def _move_ram(self, transfer: Transfer) -> bool:
        for entry, slot in zip(self._entries(transfer), transfer.slots, strict=True):
            if transfer.kind == TransferKind.STORE:
                self.slots[slot] = self._read(entry)
            else:
                contents = self.slots[slot]
                require(contents is not None, f"slot {slot} is loaded and nothing was stored there")
                self._write([entry], [contents] if contents else None)
        return True

    def _move_chunk(self, transfer: Transfer) -> bool:
        tier, entries = self.tiers[transfer.tier - 1], self._entries(transfer)
        name = transfer.keys, len(entries)
        if transfer.kind == TransferKind.STORE:
            contents = [self._read(entry) for entry in entries]
            require(
                tier.get(name, contents) == contents, f"{name} is stored twice with other contents"
            )
            tier[name] = contents
            return True
        self._write(entries, tier.get(name))
        return name in tier

    def _entries(self, transfer: Transfer) -> list[list[Place]]:
        """The blocks of all groups at one entry of the block tables side by side."""
        count = len(transfer.blocks) // len(self.pools)
        places = list(enumerate(transfer.blocks))
        return [[(at // count, block) for at, block in places[n::count]] for n in range(count)]

    def _places(self, transfer: Transfer) -> list[Place]:
        return [place for entry in self._entries(transfer) for place in entry if place[1] >= 0]

    def _read(self, entry: list[Place]) -> tuple[Cells, ...]:
        size, contents = self.block_size, []
        for group, block in entry:
            require(block >= 0, f"a store without a block of group {group}")
            cells = tuple(self.pools[group][block * size : (block + 1) * size])
            require(None not in cells, f"block {block} is stored and not all of it was computed")
            contents.append(cells)
        return tuple(contents)

    def _write(self, entries: list[list[Place]], contents: list[tuple[Cells, ...]] | None) -> None:
        """None: of a load that failed, the contents are unspecified."""
        size = self.block_size
        for index, entry in enumerate(entries):
            for group, block in entry:
                cells = contents[index][group] if contents else (None,) * size
                if block >= 0:
                    self.pools[group][block * size : (block + 1) * size] = cells

    # The contract
    # -------------------------------------------------------------------------------------

    def _check(self, transfer: Transfer) -> None:
        require(transfer.id == self._last + 1, f"transfer {transfer.id} follows {self._last}")
        self._last = transfer.id
        require(not transfer.ids, "only CANCEL has ids")
        stored = transfer.kind == TransferKind.STORE and transfer.tier != RAM
        require(stored or not transfer.parent, "only stores to chunk tiers have a parent")
        if transfer.kind == TransferKind.REMOVE:
            require(len(transfer.keys) >= DIGEST, "names to remove")
            require(len(transfer.keys) % DIGEST == 0, "keys are digests")
            return
        if transfer.kind == TransferKind.CLEAR:
            require(len(transfer.keys) in (0, GROUP), "a group or none")
            return
        require(0 <= transfer.tier <= len(self.tiers), f"there is no tier {transfer.tier}")
        require(transfer.tier != RAM or bool(self.slots), "there is no RAM tier")
        if transfer.kind == TransferKind.PROBE:
            require(
                transfer.tier != RAM, "the RAM tier is not probed: the engine knows what it has"
            )
            require(len(transfer.keys) == DIGEST * len(transfer.counts), "a digest for each chunk")
            return
        self._check_blocks(transfer)

    def _check_blocks(self, transfer: Transfer) -> None:
        slots, places = transfer.slots, self._places(transfer)
        require(len(transfer.blocks) >= 1, "a transfer of nothing")
        require(len(transfer.blocks) % len(self.pools) == 0, "as many blocks of each group")
        require(len(set(places)) == len(places), "a block is twice in one transfer")
        for group, block in places:
            require(block < len(self.pools[group]) // self.block_size, "a block out of range")
        if transfer.tier != RAM:
            require(
                len(transfer.keys) == DIGEST and not slots, "a named tier's chunk has one digest"
            )
            require(len(transfer.parent) in (0, DIGEST), "a parent is a digest")
            return
        entries = len(transfer.blocks) // len(self.pools)
        require(len(slots) == entries and not transfer.keys, "a slot for each entry")
        require(len(set(slots)) == len(slots), "a slot is twice in one transfer")
        require(all(0 <= slot < len(self.slots) for slot in slots), "a slot out of range")

    def _lend(self, transfer: Transfer) -> None:
        blocks = set(self._places(transfer))
        if transfer.kind == TransferKind.LOAD:
            lent = blocks & (self.loading | set(+self.storing))
            require(
                not lent, f"blocks {sorted(lent)} are loaded while they are in another transfer"
            )
            self.loading |= blocks
            self._write(self._entries(transfer), None)
        elif transfer.kind == TransferKind.STORE:
            require(not blocks & self.loading, "blocks are stored while they are loaded")
            self.storing.update(blocks)

    def _return(self, transfer: Transfer) -> None:
        if transfer.kind == TransferKind.LOAD:
            self.loading -= set(self._places(transfer))
        elif transfer.kind == TransferKind.STORE:
            self.storing.subtract(self._places(transfer))

    def _cancel(self, ids: array[int]) -> None:
        """A store needs its blocks no more once it has begun."""
        for each in [each for each in self.waiting if each.id in ids]:
            if each.tier not in self.stalled or each.kind == TransferKind.STORE:
                self.fail(each.id, "", Fault.NONE)

    def _answer(self, moved: TransferResult) -> TransferResult:
        self._moved.append(moved)
        return moved


def keys(transfer: Transfer) -> list[bytes]:
    return [transfer.keys[at : at + DIGEST] for at in range(0, len(transfer.keys), DIGEST)]


def forgets(transfer: Transfer, digest: bytes) -> bool:
    if transfer.kind == TransferKind.CLEAR:
        return digest.startswith(transfer.keys)
    return digest in keys(transfer)
