"""Tiers without bytes: transfers carry cells of `FakeExecutor`.

A wrong load therefore changes the output or reads a cell that was not computed; violations of the
contract of `Transfer` are refused at once. Nothing moves by itself: the test decides each answer.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass

from penstock.core.transfer import RAM, Moved, Transfer, TransferKind

from tests.fakes.contract import require

DIGEST, GROUP = 32, 4

Cells = tuple[int | None, ...]
"""Bytes of one block."""


@dataclass(slots=True)
class Waiting:
    transfer: Transfer
    failure: str | None = None


class FakeMover:
    """`cells` are those of the executor. `slots` are blocks of RAM; `tiers[n]` is what tier n + 1
    has, by the digest of a chunk's last block and its number of blocks. With `auto`, all is
    answered as it is asked.
    """

    def __init__(
        self,
        cells: list[int | None],
        block_size: int,
        *,
        named: int = 0,
        ram_slots: int = 0,
        auto: bool = False,
    ) -> None:
        self.cells = cells
        self.block_size = block_size
        self.slots: list[Cells | None] = [None] * ram_slots
        self.tiers: list[dict[tuple[bytes, int], tuple[Cells, ...]]] = [{} for _ in range(named)]
        self.auto = auto
        self.asked: list[Transfer] = []
        """All that was ever submitted."""
        self.loading: set[int] = set()
        self.storing: Counter[int] = Counter()
        self._waiting: dict[int, Waiting] = {}
        self.stalled: set[int] = set()
        self._moved: list[Moved] = []
        self._last = 0

    # What the executor calls ----------------------------------------------------------------------

    def submit(self, transfer: Transfer) -> None:
        self.asked.append(transfer)
        if transfer.kind == TransferKind.CANCEL:
            self._cancel(transfer.ids)
            return
        self._check(transfer)
        self._lend(transfer)
        self._waiting[transfer.id] = Waiting(transfer)
        if self.auto:
            self.settle()

    def take(self) -> list[Moved]:
        moved, self._moved = self._moved, []
        return moved

    def check_plan(self, read: set[int], written: set[int]) -> None:
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
        return [each.transfer for each in self._waiting.values()]

    def step(self) -> Moved | None:
        """Answer the oldest transfer of those whose tier does not stall."""
        for each in self.waiting:
            if each.tier not in self.stalled:
                return self.complete(each.id)
        return None

    def settle(self) -> list[Moved]:
        """Answer all whose tier does not stall."""
        moved = []
        while (each := self.step()) is not None:
            moved.append(each)
        return moved

    def complete(self, transfer_id: int) -> Moved:
        """Answer this one, out of its turn perhaps."""
        waiting = self._waiting.pop(transfer_id)
        self._return(waiting.transfer)
        if waiting.failure is None:
            return self._answer(self._move(waiting.transfer))
        if waiting.transfer.kind == TransferKind.LOAD:
            self._write(waiting.transfer.blocks, None)
        found = bytes(len(waiting.transfer.counts))
        return self._answer(Moved(transfer_id, False, found, error=waiting.failure))

    def fail(self, error: str = "the fake tier was told to fail") -> Moved:
        """Answer the oldest as not done."""
        oldest = next(iter(self._waiting))
        self._waiting[oldest].failure = error
        return self.complete(oldest)

    def stall(self, tier: int) -> None:
        """Transfers of the tier have begun, do not end and cannot be cancelled, until `heal`."""
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

    # Movement
    # -----------------------------------------------------------------------------------------

    def _move(self, transfer: Transfer) -> Moved:
        if transfer.kind == TransferKind.PROBE:
            tier = self.tiers[transfer.tier - 1]
            chunks = zip(keys(transfer), transfer.counts, strict=True)
            return Moved(transfer.id, True, bytes(chunk in tier for chunk in chunks))
        if transfer.kind in (TransferKind.REMOVE, TransferKind.CLEAR):
            for tier in self.tiers:
                for name in [name for name in tier if forgets(transfer, name[0])]:
                    del tier[name]
            return Moved(transfer.id, True)
        move = self._move_ram if transfer.tier == RAM else self._move_chunk
        size = 4 * self.block_size * len(transfer.blocks)
        done = move(transfer)
        return Moved(transfer.id, done, bytes=size if done else 0, seconds=size * 1e-9)

    def _move_ram(self, transfer: Transfer) -> bool:
        for block, slot in zip(transfer.blocks, transfer.slots, strict=True):
            if transfer.kind == TransferKind.STORE:
                self.slots[slot] = self._read(block)
            else:
                contents = self.slots[slot]
                require(contents is not None, f"slot {slot} is loaded and nothing was stored there")
                self._write((block,), (contents,) if contents else None)
        return True

    def _move_chunk(self, transfer: Transfer) -> bool:
        tier, name = self.tiers[transfer.tier - 1], (transfer.keys, len(transfer.blocks))
        if transfer.kind == TransferKind.STORE:
            contents = tuple(self._read(block) for block in transfer.blocks)
            require(
                tier.get(name, contents) == contents, f"{name} is stored twice with other contents"
            )
            tier[name] = contents
            return True
        self._write(transfer.blocks, tier.get(name))
        return name in tier

    def _read(self, block: int) -> Cells:
        cells = tuple(self.cells[block * self.block_size : (block + 1) * self.block_size])
        require(None not in cells, f"block {block} is stored and not all of it was computed")
        return cells

    def _write(
        self, blocks: array[int] | tuple[int, ...], contents: tuple[Cells, ...] | None
    ) -> None:
        """None: of a load that failed, the contents are unspecified."""
        for index, block in enumerate(blocks):
            cells = contents[index] if contents else (None,) * self.block_size
            self.cells[block * self.block_size : (block + 1) * self.block_size] = cells

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
        blocks, slots = transfer.blocks, transfer.slots
        require(len(blocks) >= 1, "a transfer of nothing")
        require(len(set(blocks)) == len(blocks), "a block is twice in one transfer")
        most = len(self.cells) // self.block_size
        require(all(0 <= block < most for block in blocks), "a block out of range")
        if transfer.tier != RAM:
            require(
                len(transfer.keys) == DIGEST and not slots, "a named tier's chunk has one digest"
            )
            require(len(transfer.parent) in (0, DIGEST), "a parent is a digest")
            return
        require(len(slots) == len(blocks) and not transfer.keys, "a slot for each block of RAM")
        require(len(set(slots)) == len(slots), "a slot is twice in one transfer")
        require(all(0 <= slot < len(self.slots) for slot in slots), "a slot out of range")

    def _lend(self, transfer: Transfer) -> None:
        blocks = set(transfer.blocks)
        if transfer.kind == TransferKind.LOAD:
            lent = blocks & (self.loading | set(+self.storing))
            require(
                not lent, f"blocks {sorted(lent)} are loaded while they are in another transfer"
            )
            self.loading |= blocks
            self._write(transfer.blocks, None)
        elif transfer.kind == TransferKind.STORE:
            require(not blocks & self.loading, "blocks are stored while they are loaded")
            self.storing.update(blocks)

    def _return(self, transfer: Transfer) -> None:
        if transfer.kind == TransferKind.LOAD:
            self.loading -= set(transfer.blocks)
        elif transfer.kind == TransferKind.STORE:
            self.storing.subtract(transfer.blocks)

    def _cancel(self, ids: array[int]) -> None:
        for each in [
            each for each in self.waiting if each.id in ids and each.tier not in self.stalled
        ]:
            self._waiting[each.id].failure = ""
            self.complete(each.id)

    def _answer(self, moved: Moved) -> Moved:
        self._moved.append(moved)
        return moved


def keys(transfer: Transfer) -> list[bytes]:
    return [transfer.keys[at : at + DIGEST] for at in range(0, len(transfer.keys), DIGEST)]


def forgets(transfer: Transfer, digest: bytes) -> bool:
    if transfer.kind == TransferKind.CLEAR:
        return digest.startswith(transfer.keys)
    return digest in keys(transfer)
