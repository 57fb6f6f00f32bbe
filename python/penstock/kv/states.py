"""State slots of sequences, for models with recurrent layers, and state checkpoints.

A recurrent layer has one value for each sequence, which every token replaces. A state slot holds
this value of all recurrent layers after one position, the number of tokens consumed. A state
checkpoint is a slot that is named by the digest of the block that ends at its position.

Steps never copy a state. A row of a plan names the slot that it reads, the slot that it writes at
its end, and slots that it writes at positions in between. A slot that has a name or several owners
is only read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from penstock.core import InvalidValueError
from penstock.core.plan import NO_STATE
from penstock.kv.pool import BlockPool, PoolCorruptError


@dataclass(frozen=True, slots=True)
class RowState:
    """The state slots of one row of a plan: positions start .. end of a sequence."""

    start: int
    end: int
    source: int
    """Slot of the state at `start`; NO_STATE at position 0."""
    target: int
    """Slot of the state at `end`. The same as `source` if the row writes in place."""
    saves: tuple[tuple[int, int], ...] = ()
    """Position and slot of further states to write between `start` and `end`, ascending."""
    checkpoints: tuple[int, ...] = ()
    """Positions of the states that are named once they are computed, ascending."""


@dataclass(slots=True, eq=False)
class StateTable:
    """State slots of one sequence."""

    at: int = NO_STATE
    """Slot of the state after the computed tokens; NO_STATE before the first."""
    rows: deque[RowState] = field(default_factory=deque)
    """Rows in flight, oldest first."""
    unread: list[int] = field(default_factory=list)
    """Slots of rows that were taken back, which later rows in flight may read."""
    newest: bytes = b""
    """Digest of the newest checkpoint that the sequence has made."""

    @property
    def head(self) -> int:
        """Slot of the state after the scheduled tokens."""
        return self.rows[-1].target if self.rows else self.at

    def slots(self) -> list[int]:
        """The slots that the sequence owns, one entry for each reference."""
        owned = [*self.unread] if self.at == NO_STATE else [self.at, *self.unread]
        for row in self.rows:
            owned.extend(_written(row).values())
        return owned


class StatePool:
    """`slots` is 0 for a model without recurrent layers. A running sequence needs up to two slots:
    one that it reads and one that it writes.
    """

    def __init__(self, slots: int, block_size: int) -> None:
        if slots == 1:
            raise InvalidValueError("states", slots, "0, or at least 2")
        self.slots = slots
        self.skipped = 0
        """Number of checkpoints that were not made, because no slot was free."""
        self._block_size = block_size
        self._pool = BlockPool(slots)
        self._pool.on_removed.append(self._removed)
        self._passing: set[bytes] = set()
        """Digests of checkpoints of running sequences that are forgotten once their sequence has a
        newer one.
        """

    @property
    def available(self) -> int:
        """Number of slots that no sequence owns."""
        return self._pool.available

    @property
    def named(self) -> int:
        """Number of checkpoints."""
        return self._pool.named

    def find(self, digest: bytes) -> int:
        """The slot of the checkpoint with this digest, or -1."""
        return self._pool.find(digest)

    def longest(self, digests: Sequence[bytes], hits: int) -> int:
        """Number of blocks, at most `hits`, at whose end the newest checkpoint is; 0 without
        any.
        """
        find = self._pool.find
        return next((at for at in range(hits, 0, -1) if find(digests[at - 1]) >= 0), 0)

    # A sequence's rows ----------------------------------------------------------------------------

    def begin(self, table: StateTable, digest: bytes) -> None:
        """Let an empty table begin at the checkpoint with this digest."""
        table.at = self._pool.find(digest)
        self._pool.share(table.at)

    def plan(
        self,
        table: StateTable,
        start: int,
        end: int,
        *,
        ends: Collection[int] = (),
        checkpoints: Sequence[int] = (),
        spare: int = 0,
    ) -> RowState | None:
        """Allocate the slots of the sequence's next row, or none and return None if too few are
        free. `ends`: positions below `end` at which the row may turn out to end. `checkpoints`:
        positions in descending order of use; those that would leave fewer than `spare` free slots
        are left out.
        """
        pool, source = self._pool, table.head
        in_place = start not in ends and self._is_writable(table)
        needed = [position for position in ends if position > start]
        if len(needed) + (not in_place) > pool.available:
            return None
        target = source if in_place else pool.take()
        saves = {position: pool.take() for position in needed}
        for position in checkpoints:
            if position == end or position in saves:
                continue
            if pool.available > spare:
                saves[position] = pool.take()
            else:
                self.skipped += 1
        named = sorted(at for at in checkpoints if at == end or at in saves)
        row = RowState(start, end, source, target, tuple(sorted(saves.items())), tuple(named))
        table.rows.append(row)
        return row

    def extend(self, table: StateTable, tokens: int, checkpoints: Iterable[int]) -> None:
        """Add `tokens` drafts to the sequence's newest row, which has one token. Each of the row's
        positions gets a slot, because any may turn out to be the last.
        """
        row = table.rows[-1]
        end = row.end + tokens
        saves = tuple((position, self._pool.take()) for position in range(row.end, end))
        table.rows[-1] = replace(row, end=end, saves=saves, checkpoints=tuple(checkpoints))

    def keep(self, table: StateTable, position: int) -> None:
        """Add a checkpoint to the sequence's newest row, whose plan is being made, if the row
        covers the position and a slot is free.
        """
        row = table.rows[-1] if table.rows else None
        if row is None or not row.start < position <= row.end or position in row.checkpoints:
            return
        saves = dict(row.saves)
        if position != row.end and position not in saves:
            if not self._pool.available:
                self.skipped += 1
                return
            saves[position] = self._pool.take()
        checkpoints = tuple(sorted((*row.checkpoints, position)))
        table.rows[-1] = replace(row, saves=tuple(sorted(saves.items())), checkpoints=checkpoints)

    def apply(
        self, table: StateTable, computed: int, digests: Sequence[bytes], chosen: Collection[int]
    ) -> None:
        """Apply the sequence's oldest row: `computed` tokens are computed now (not even those
        before the row, if an earlier one was taken back), and the KV blocks of `digests` up to
        there are named. Name the checkpoints; of those that are not `chosen`, only the newest,
        until the sequence has a newer one.
        """
        row, before = table.rows.popleft(), table.newest
        self._name(table, row, computed, digests, chosen)
        left = _written(row)
        if computed in left:
            if table.at != NO_STATE:
                self._pool.release((table.at,))
            table.at = left.pop(computed)
        elif row.start < computed < row.end or (computed < row.end and row.target == row.source):
            raise PoolCorruptError(f"no slot has the state after {computed} tokens")
        if computed < row.end:
            table.unread.extend(left.values())
        else:
            self._pool.release(list(left.values()))
        if table.unread and not table.rows:
            self._pool.release(table.unread)
            table.unread.clear()
        if before != table.newest:
            self._forget_passing(before)

    def release(self, table: StateTable) -> None:
        """Release all slots and empty the table. Its newest checkpoint stays."""
        self._pool.release(table.slots())
        self._passing.discard(table.newest)
        table.at, table.newest = NO_STATE, b""
        table.rows.clear()
        table.unread.clear()

    def _is_writable(self, table: StateTable) -> bool:
        """Whether the sequence's next row may write its state in place."""
        head = table.head
        if head == NO_STATE or (table.rows and table.rows[-1].end in table.rows[-1].checkpoints):
            return False
        return self._pool.is_private(head)

    def _name(
        self,
        table: StateTable,
        row: RowState,
        computed: int,
        digests: Sequence[bytes],
        chosen: Collection[int],
    ) -> None:
        slots = {**dict(row.saves), row.end: row.target}
        done = [position for position in row.checkpoints if position <= computed]
        for position in done:
            if position in chosen or position == done[-1]:
                table.newest = digests[position // self._block_size - 1]
                self._publish(slots[position], table.newest, passing=position not in chosen)

    def _publish(self, slot: int, digest: bytes, *, passing: bool) -> None:
        if not passing:
            self._passing.discard(digest)
        elif self.find(digest) < 0:
            self._passing.add(digest)
        self._pool.publish(slot, digest)

    # Checkpoints ----------------------------------------------------------------------------------

    def forget(self, digest: bytes) -> None:
        """Remove a checkpoint. A slot that sequences own stays with them."""
        self._pool.forget(digest)

    def forget_all(self, salt_group: bytes = b"") -> int:
        """Remove all checkpoints, or those whose digests begin with `salt_group`; returns their
        number.
        """
        return self._pool.forget_all(salt_group)

    def _forget_passing(self, digest: bytes) -> None:
        if digest in self._passing and self._pool.is_free(self.find(digest)):
            self.forget(digest)

    def _removed(self, digest: bytes) -> None:
        self._passing.discard(digest)

    def check(self, tables: Iterable[StateTable]) -> None:
        """Audit the slots against the sequences' tables. Raises PoolCorruptError on a mismatch."""
        self._pool.check(table.slots() for table in tables)


def _written(row: RowState) -> dict[int, int]:
    """Slots that the row owns, by position: those that it writes, except in place."""
    written = dict(row.saves)
    if row.target != row.source:
        written[row.end] = row.target
    return written
