"""State slots: who owns them, what may be written in place, which checkpoints stay."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import InvalidValueError
from penstock.core.plan import NO_STATE
from penstock.kv import (
    BlockHasher,
    KvCache,
    Match,
    PoolCorruptError,
    RowState,
    StatePool,
    StateTable,
)
from tests.fakes.executor import hash_chain, hash_root

SIZE = 16
TOKENS = array("i", range(256))
DIGESTS = BlockHasher(SIZE, b"i" * 32, hash_chain, hash_root).digests(TOKENS, [], b"")


def grown(pool: StatePool, table: StateTable, start: int, end: int, *checkpoints: int) -> RowState:
    """A row that is planned and applied."""
    row = pool.plan(table, start, end, checkpoints=checkpoints)
    assert row is not None
    pool.apply(table, end, DIGESTS, checkpoints)
    return row


def test_rows_write_in_place_while_nobody_else_reads() -> None:
    pool, table = StatePool(4, SIZE), StateTable()
    first = grown(pool, table, 0, 5)
    assert (first.source, first.target) == (NO_STATE, table.at)
    assert grown(pool, table, 5, 9).target == first.target
    named = grown(pool, table, 9, 16, 16)
    assert named.target == first.target
    assert pool.find(DIGESTS[0]) == first.target
    after = grown(pool, table, 16, 17)
    assert after.source == first.target != after.target
    pool.check([table])
    assert grown(pool, table, 17, 18).target == after.target


def test_a_row_planned_ahead_does_not_write_over_what_is_to_be_named() -> None:
    pool, table = StatePool(4, SIZE), StateTable()
    grown(pool, table, 0, 15)
    row = pool.plan(table, 15, 16, checkpoints=(16,))
    ahead = pool.plan(table, 16, 17)
    assert row is not None
    assert ahead is not None
    assert ahead.source == row.target != ahead.target
    assert pool.find(DIGESTS[0]) < 0, "a name before the state is computed"
    pool.apply(table, 16, DIGESTS, ())
    assert pool.find(DIGESTS[0]) == row.target
    pool.apply(table, 17, DIGESTS, ())
    assert table.at == ahead.target
    pool.check([table])


def test_a_row_that_is_taken_back_leaves_the_state_before_it() -> None:
    pool, table = StatePool(5, SIZE), StateTable()
    grown(pool, table, 0, 15)
    before = table.at
    row = pool.plan(table, 15, 16, ends=(15,), checkpoints=(16,))
    ahead = pool.plan(table, 16, 17, ends=(16,))
    assert row is not None
    assert ahead is not None
    assert len({before, row.target, ahead.target}) == 3
    pool.apply(table, 15, DIGESTS, ())
    assert (table.at, pool.named, pool.available) == (before, 0, 2), "the row ahead still reads"
    pool.check([table])
    pool.apply(table, 15, DIGESTS, ())
    assert (table.at, pool.available) == (before, 4)
    pool.check([table])


@pytest.mark.parametrize("computed", range(20, 25))
def test_drafts_keep_the_state_after_each(computed: int) -> None:
    pool, table = StatePool(8, SIZE), StateTable()
    grown(pool, table, 0, 19)
    pool.plan(table, 19, 20)
    pool.extend(table, 4, ())
    (row,) = table.rows
    slots = {**dict(row.saves), row.end: row.target}
    assert sorted(slots) == [20, 21, 22, 23, 24]
    pool.apply(table, computed, DIGESTS, ())
    assert table.at == slots[computed]
    assert pool.available == 7
    pool.check([table])


def test_a_position_without_a_slot_is_an_error() -> None:
    pool, table = StatePool(4, SIZE), StateTable()
    grown(pool, table, 0, 5)
    pool.plan(table, 5, 9)
    with pytest.raises(PoolCorruptError, match="after 7 tokens"):
        pool.apply(table, 7, DIGESTS, ())


def test_checkpoints_leave_spare_slots_and_are_counted_if_left_out() -> None:
    pool, table = StatePool(4, SIZE), StateTable()
    row = pool.plan(table, 0, 64, checkpoints=(32, 48, 16, 64), spare=1)
    assert row is not None
    assert [position for position, _ in row.saves] == [32, 48]
    assert row.checkpoints == (32, 48, 64)
    assert (pool.skipped, pool.available) == (1, 1)
    assert pool.plan(StateTable(), 0, 9, ends=(8,)) is None, "two slots"
    assert pool.available == 1
    pool.check([table])


def test_a_checkpoint_is_added_to_a_row_while_its_plan_is_made() -> None:
    pool, table = StatePool(3, SIZE), StateTable()
    pool.keep(table, 16)
    pool.plan(table, 0, 64, checkpoints=(64,))
    for position in (32, 16, 64, 80, 48):
        pool.keep(table, position)
    (row,) = table.rows
    assert [position for position, _ in row.saves] == [16, 32]
    assert (row.checkpoints, pool.skipped) == ((16, 32, 64), 1)
    pool.apply(table, 64, DIGESTS, {16, 32})
    assert [pool.find(digest) >= 0 for digest in DIGESTS[:4]] == [True, True, False, True]
    pool.check([table])


def test_a_checkpoint_is_replaced_by_the_next_unless_chosen_or_shared() -> None:
    pool, table, other = StatePool(8, SIZE), StateTable(), StateTable()
    for end in (16, 32, 48, 64):
        pool.plan(table, end - 16, end, checkpoints=(end,))
        pool.apply(table, end, DIGESTS, {16})
        if end == 32:
            pool.begin(other, DIGESTS[1])
    assert [pool.find(digest) >= 0 for digest in DIGESTS[:4]] == [True, True, False, True]
    pool.release(table)
    pool.release(other)
    assert pool.longest(DIGESTS, 8) == 4
    assert pool.longest(DIGESTS, 3) == 2
    assert pool.longest(DIGESTS, 1) == 1
    assert pool.longest(DIGESTS, 0) == 0
    assert pool.available == 8


def test_a_shared_slot_is_not_written_though_its_name_is_gone() -> None:
    pool, table, other = StatePool(8, SIZE), StateTable(), StateTable()
    grown(pool, table, 0, 16, 16)
    pool.begin(other, DIGESTS[0])
    pool.forget(DIGESTS[0])
    row = pool.plan(other, 16, 17)
    assert row is not None
    assert row.target != row.source
    pool.check([table, other])


def test_one_slot_is_too_few() -> None:
    with pytest.raises(InvalidValueError, match="at least 2"):
        StatePool(1, SIZE)


def test_the_audit_finds_a_slot_that_nobody_owns() -> None:
    pool = StatePool(2, SIZE)
    pool.plan(StateTable(), 0, 5)
    with pytest.raises(PoolCorruptError, match="has 1 references, 0 tables own it"):
        pool.check([])


# In the prefix cache ------------------------------------------------------------------------------


def cache(*windows: int | None, chunked: tuple[bool, ...] = ()) -> KvCache:
    """A cache in which 96 tokens are computed and released, with checkpoints at 32 and 80."""
    hasher = BlockHasher(SIZE, b"i" * 32, hash_chain, hash_root)
    kv = KvCache(
        SIZE, [7] * len(windows), windows=windows, chunked=chunked, hasher=hasher, states=6
    )
    table = kv.table()
    assert kv.grow(table, 96)
    for entry in range(6):
        kv.publish(table, entry, DIGESTS[entry])
    assert kv.states.plan(table.state, 0, 96, checkpoints=(32, 80)) is not None
    kv.states.apply(table.state, 96, DIGESTS, {32, 80})
    kv.release(table)
    return kv


@pytest.mark.parametrize("windows", [[None], [None, 20], [20]])
def test_a_hit_ends_at_the_newest_checkpoint(windows: list[int | None]) -> None:
    kv = cache(*windows)
    assert [kv.find_prefix(DIGESTS, limit).hits for limit in range(7)] == [0, 0, 2, 2, 2, 5, 5]
    assert [kv.find_prefix(DIGESTS, limit).kv for limit in range(7)] == list(range(7))


def test_a_checkpoint_whose_window_has_a_gap_is_no_hit() -> None:
    kv = cache(None, 20)
    kv.pools[1].forget(DIGESTS[3])
    assert kv.find_prefix(DIGESTS, 6) == Match(6, 2)
    kv.pools[1].forget(DIGESTS[0])
    assert kv.find_prefix(DIGESTS, 6) == Match(6, 0)


def test_a_block_that_is_evicted_takes_its_checkpoint_along() -> None:
    kv = cache(None)
    table = kv.table()
    assert kv.grow(table, 3 * SIZE)
    assert kv.find_prefix(DIGESTS, 6) == Match(4, 2)
    assert (kv.states.find(DIGESTS[4]), kv.states.named) == (-1, 1)
    kv.check([table])


def test_an_admission_cannot_evict_the_state_that_it_begins_at() -> None:
    """A chunk ends at the hit, so the group shares no block of it and may evict all."""
    kv = cache(80, chunked=(True,))
    table = kv.table()
    found = kv.find_prefix(DIGESTS, 6)
    assert found.hits == 5
    assert kv.admit(table, DIGESTS, found.hits, 190, 0)
    assert table.state.at >= 0
    kv.check([table])


# A dictionary as the model ------------------------------------------------------------------------


@dataclass
class Stream:
    """A sequence of the model test: its tokens are those of all, so that checkpoints are shared."""

    table: StateTable = field(default_factory=StateTable)
    computed: int = 0
    scheduled: int = 0
    in_flight: list[tuple[RowState, bool]] = field(default_factory=list)


class Model:
    """State slots with the positions that a device would have written."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.pool = StatePool(draw.choice([2, 3, 6, 12]), SIZE)
        self.streams = [Stream() for _ in range(3)]
        self.slots = [-1] * self.pool.slots

    def step(self) -> None:
        stream = self.draw.choice(self.streams)
        action = self.draw.randrange(8)
        if action < 4 and len(stream.in_flight) < 2 and stream.scheduled < 190:
            self.plan(stream)
        elif action < 6 and stream.in_flight:
            self.apply(stream)
        elif action == 6 and not stream.in_flight:
            self.begin(stream)
        elif action == 7 and self.draw.random() < 0.2:
            self.pool.forget(self.draw.choice(DIGESTS))
        self.check()

    def begin(self, stream: Stream) -> None:
        self.pool.release(stream.table)
        hits = self.pool.longest(DIGESTS, self.draw.randrange(12))
        if hits:
            self.pool.begin(stream.table, DIGESTS[hits - 1])
        stream.computed = stream.scheduled = hits * SIZE

    def plan(self, stream: Stream) -> None:
        """A row of one token may be behind another; both may be taken back, or neither."""
        start, draw = stream.scheduled, self.draw
        end = start + draw.choice([1, 1, 7, 16, 40])
        revocable = draw.random() < 0.4
        if stream.in_flight and (stream.in_flight[-1][1] != revocable or end > start + 1):
            return
        checkpoints = [at for at in range(start + 1, end + 1) if at % SIZE == 0]
        ends = (end - 1,) if revocable else ()
        row = self.pool.plan(
            stream.table, start, end, ends=ends, checkpoints=checkpoints, spare=draw.randrange(3)
        )
        if row is None:
            return
        if not revocable and end == start + 1 and not stream.in_flight and draw.random() < 0.3:
            drafts = draw.randrange(min(self.pool.available, 5) + 1)
            last = range(start + 1, end + drafts + 1)
            self.pool.extend(stream.table, drafts, [at for at in last if at % SIZE == 0])
            row = stream.table.rows[-1]
            revocable = True
        stream.in_flight.append((row, revocable))
        stream.scheduled = row.end
        assert start == (0 if row.source == NO_STATE else self.slots[row.source])
        for position, slot in (*row.saves, (row.end, row.target)):
            self.slots[slot] = position

    def apply(self, stream: Stream) -> None:
        row, revocable = stream.in_flight.pop(0)
        possible = [row.end]
        if revocable:
            possible += [position for position, _ in row.saves]
            possible += [row.start] * (row.target != row.source)
        if stream.computed == row.start:
            stream.computed = self.draw.choice(possible)
        chosen = self.draw.sample(range(0, 200, SIZE), 6)
        self.pool.apply(stream.table, stream.computed, DIGESTS, chosen)
        if not stream.in_flight:
            stream.scheduled = stream.computed

    def check(self) -> None:
        self.pool.check(stream.table for stream in self.streams)
        for block, digest in enumerate(DIGESTS, start=1):
            slot = self.pool.find(digest)
            assert slot < 0 or self.slots[slot] == block * SIZE
        for stream in self.streams:
            if not stream.in_flight:
                at = stream.table.at
                assert stream.computed == (0 if at == NO_STATE else self.slots[at])


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=True))
def test_slots_have_what_their_names_and_tables_say(draw: Random) -> None:
    model = Model(draw)
    for _ in range(120):
        model.step()
