"""KV blocks of all KV groups: block tables of sequences, prefix hits, and the audit.

In every group, entry i of a block table is the block of positions i * block_size and following. A
group with a window holds only blocks that a later token can see. Blocks that have left the window
are released, and a prefix hit does not need them. With chunked attention the window does not slide:
it restarts at multiples of its size.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from penstock.core import InvalidValueError
from penstock.core.plan import NO_BLOCK
from penstock.kv.events import KvEvents
from penstock.kv.hashing import BlockHasher
from penstock.kv.pool import BlockPool
from penstock.kv.states import StatePool, StateTable

Cut = Callable[[Sequence[bytes], int], int]
"""Upper bound of a prefix hit: from the digests of a prompt's blocks and a number of them, the same
number if all that a hit of this length needs is in the pool, or a smaller one if something is not.
"""


@dataclass(slots=True, eq=False)
class BlockTable:
    """Block numbers of one sequence, one list for each group."""

    groups: tuple[array[int], ...]
    behind: list[int]
    """For each group, number of leading entries without a block. These positions have left the
    sliding window, so no later token attends to them.
    """
    capacity: int = 0
    """Number of tokens for which every group has blocks."""
    sent: int = 0
    """Number of leading entries that were already sent to the executor in a plan."""
    state: StateTable = field(default_factory=StateTable)
    """Slots of the sequence state; unused if the model has none."""


@dataclass(frozen=True, slots=True)
class Match:
    """A prompt's longest prefix in the pools, in blocks."""

    kv: int
    """Number of blocks with KV."""
    hits: int
    """Number of blocks that need not be computed: with sequence state, those before a state
    checkpoint. Otherwise the same as `kv`.
    """


@dataclass(slots=True)
class _Share:
    """Blocks of one group for a sequence that is about to be admitted: `found` in the cache, and
    `missing`, which must be allocated.
    """

    pool: BlockPool
    behind: int
    found: list[int] = field(default_factory=list)
    missing: int = 0


class KvCache:
    """`blocks` and `windows` have one entry for each group. A window of None means full attention;
    a `chunked` window does not slide. `states` is the number of state slots; 0 for a model without
    sequence state. Without a `hasher` no block gets a digest. If `searched` is False, prefixes are
    not looked up.

    `step_tokens` is the maximum number of tokens of one sequence in a step.
    """

    def __init__(
        self,
        block_size: int,
        blocks: Sequence[int],
        *,
        windows: Sequence[int | None] = (None,),
        chunked: Sequence[bool] = (),
        step_tokens: int = 1,
        hasher: BlockHasher | None = None,
        searched: bool = True,
        events: KvEvents | None = None,
        states: int = 0,
    ) -> None:
        if len(blocks) != len(windows):
            raise InvalidValueError("blocks", list(blocks), f"a number for {len(windows)} groups")
        self.block_size = block_size
        self.pools = tuple(map(BlockPool, blocks))
        self.states = StatePool(states, block_size)
        self.has_state = states > 0
        """Whether the model has sequence state."""
        self.hasher = hasher
        self.windowed = any(windows)
        self._windows = tuple(windows)
        self._chunked = tuple(chunked) or (False,) * len(windows)
        self._step_tokens = step_tokens
        self._searched = searched
        self._cuts: tuple[Cut, ...] = tuple(
            partial(self._visible, group)
            for group, window in enumerate(windows)
            if window is not None
        )
        self.events = events
        # KV events and state checkpoints follow one group only. A hit needs blocks in every group,
        # and the group without a window keeps most of them.
        self._reported = self.pools[windows.index(None) if None in windows else 0]
        if events is not None:
            self._reported.on_removed.append(events.removed)
        if states:
            # A state without the KV before it is of no use.
            self._reported.on_removed.append(self.states.forget)

    def table(self) -> BlockTable:
        """A new, empty block table."""
        return BlockTable(tuple(array("i") for _ in self.pools), [0] * len(self.pools))

    def seats(self, most: int) -> int:
        """Number of sequences, at most `most`, that can run at once: each needs two state slots."""
        return min(most, self.states.slots // 2) if self.has_state else most

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def shortage(self, tokens: int) -> tuple[int, int] | None:
        """Blocks needed and pool size, for the first pool that can never hold `tokens` tokens of
        one sequence; None if all pools can.
        """
        for pool, window in zip(self.pools, self._windows, strict=True):
            needed = self.blocks_for(tokens)
            if window is not None:
                needed = min(needed, window_blocks(window, self._step_tokens, self.block_size))
            if needed > pool.num_blocks:
                return needed, pool.num_blocks
        return None

    # Block tables ---------------------------------------------------------------------------------

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Extend the table to `tokens` tokens in every group. If a pool has too few free blocks,
        returns False and allocates none.
        """
        entries = -(-tokens // self.block_size)
        pairs = tuple(zip(self.pools, table.groups, strict=True))
        if any(entries - len(blocks) > pool.available for pool, blocks in pairs):
            return False
        for pool, blocks in pairs:
            for _ in range(entries - len(blocks)):
                blocks.append(pool.take())
        table.capacity = min(map(len, table.groups)) * self.block_size
        return True

    def admit(
        self,
        table: BlockTable,
        digests: Sequence[bytes],
        hits: int,
        tokens: int,
        spare: int,
        resume: int = 0,
    ) -> bool:
        """Fill an empty table for `tokens` tokens. The first `hits` blocks, named by `digests`, are
        in the pool, and so is the state at their end. If `resume` is larger, the blocks up to it
        are loaded from tiers before the rest is computed.

        A group with a window gets blocks for one step, and the earlier blocks that this step
        attends to. Returns False and changes nothing if a pool would keep fewer than `spare` free
        blocks.
        """
        first = min(max(hits, resume) * self.block_size, tokens - 1)
        shares = []
        for group, (pool, window) in enumerate(zip(self.pools, self._windows, strict=True)):
            behind, end = self._behind(group, first), tokens
            if window is not None:
                end = min(end, first + self._step_tokens)
            found = [pool.find(digest) for digest in digests[behind:hits]]
            missing = self.blocks_for(end) - max(behind, hits)
            if missing + spare > pool.available - sum(map(pool.is_free, found)):
                return False
            shares.append(_Share(pool, behind, found, missing))
        # Before blocks are taken, which can evict digests and their checkpoints.
        if self.has_state and hits:
            self.states.begin(table.state, digests[hits - 1])
        for group, share in enumerate(shares):
            self._fill(table, group, share)
        table.capacity = min(map(len, table.groups)) * self.block_size
        return True

    def _fill(self, table: BlockTable, group: int, share: _Share) -> None:
        blocks = table.groups[group]
        for block in share.found:
            share.pool.share(block)
        blocks.extend([NO_BLOCK] * share.behind)
        blocks.extend(share.found)
        blocks.extend([share.pool.take() for _ in range(share.missing)])
        table.behind[group] = share.behind

    def give_back(self, table: BlockTable, position: int) -> None:
        """Release the blocks that have left the window: no token from `position` on attends to
        them.
        """
        for group in range(len(self.pools)):
            first, end = table.behind[group], self._behind(group, position)
            if end > first:
                blocks = table.groups[group]
                self.pools[group].release(blocks[first:end])
                blocks[first:end] = array("i", [NO_BLOCK] * (end - first))
                table.behind[group] = end

    def release(self, table: BlockTable) -> None:
        """Release all blocks and empty the table."""
        for group, pool in enumerate(self.pools):
            blocks = table.groups[group]
            pool.release(blocks[table.behind[group] :])
            del blocks[:]
            table.behind[group] = 0
        table.capacity = table.sent = 0
        self.states.release(table.state)

    def _behind(self, group: int, position: int) -> int:
        """Number of leading blocks that a token at `position` does not attend to."""
        window = self._windows[group]
        if window is None:
            return 0
        if self._chunked[group]:
            return position // window * window // self.block_size
        return max(position - window + 1, 0) // self.block_size

    # Prefix cache ---------------------------------------------------------------------------------

    def find_prefix(self, digests: Sequence[bytes], limit: int) -> Match:
        """The longest prefix in the pools, at most `limit` blocks. In each group it covers all
        blocks that the next token attends to. Takes no references.
        """
        hits = limit if self._searched else 0
        for pool, window in zip(self.pools, self._windows, strict=True):
            if window is None:
                hits = next((at for at in range(hits) if pool.find(digests[at]) < 0), hits)
        kv = _agreed(self._cuts, digests, hits)
        if not self.has_state:
            return Match(kv, kv)
        return Match(kv, _agreed((self.states.longest, *self._cuts), digests, kv))

    def _visible(self, group: int, digests: Sequence[bytes], hits: int) -> int:
        """The `Cut` of a group with a window: it needs the blocks inside the window."""
        pool = self.pools[group]
        for at in range(hits - 1, self._behind(group, hits * self.block_size) - 1, -1):
            if pool.find(digests[at]) < 0:
                return at
        return hits

    def publish(self, table: BlockTable, entry: int, digest: bytes) -> None:
        """Publish the digest of the blocks at one entry of a table, in all groups. The blocks'
        contents must be computed.
        """
        for pool, blocks in zip(self.pools, table.groups, strict=True):
            if blocks[entry] != NO_BLOCK:
                pool.publish(blocks[entry], digest)

    def report_stored(
        self, tokens: array[int], digests: Sequence[bytes], first: int, end: int
    ) -> None:
        """Emit a KV event for each of the blocks first .. end - 1 that is in the pool."""
        if self.events is None:
            return
        size = self.block_size
        for at in range(first, end):
            if self._reported.find(digests[at]) >= 0:
                parent = digests[at - 1] if at else None
                block = tokens[at * size : (at + 1) * size]
                self.events.stored(digests[at], parent, block)

    def publish_events(self) -> None:
        """Publish the KV events collected since the last call."""
        if self.events is not None:
            self.events.flush()

    def forget(self, digest: bytes) -> bool:
        """Remove a digest from the pools of all groups, so that lookups no longer find the block.
        Returns whether a pool had it.
        """
        self.states.forget(digest)
        return sum(pool.forget(digest) for pool in self.pools) > 0

    def forget_all(self, salt_group: bytes = b"") -> int:
        """Remove all digests, or those that begin with `salt_group`; returns their number, counted
        in each group's pool. State checkpoints are removed with them, but not counted.
        """
        self.states.forget_all(salt_group)
        return sum(pool.forget_all(salt_group) for pool in self.pools)

    # Reports --------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return sum(pool.num_blocks for pool in self.pools)

    @property
    def used(self) -> int:
        """Number of blocks that sequences or transfers own, over all groups."""
        return sum(pool.num_blocks - pool.available for pool in self.pools)

    @property
    def named(self) -> int:
        """Number of blocks with a published digest, over all groups."""
        return sum(pool.named for pool in self.pools)

    def check(
        self, tables: Iterable[BlockTable], held: Iterable[tuple[int, Sequence[int]]] = ()
    ) -> None:
        """Audit all pools against the sequences' tables and the blocks that transfers hold, given
        as (group, blocks). Raises PoolCorruptError on a mismatch.
        """
        owned: list[list[Sequence[int]]] = [[] for _ in self.pools]
        tables = list(tables)
        self.states.check(table.state for table in tables)
        for table in tables:
            for group, blocks in enumerate(table.groups):
                owned[group].append(blocks[table.behind[group] :])
        for group, others in held:
            owned[group].append(others)
        for pool, each in zip(self.pools, owned, strict=True):
            pool.check(each)


def _agreed(cuts: Sequence[Cut], digests: Sequence[bytes], hits: int) -> int:
    """The longest hit, at most `hits`, that no cut shortens. A shorter hit moves all windows, so
    that other blocks are needed: repeat until nothing changes.
    """
    while (shorter := reduce(lambda length, cut: cut(digests, length), cuts, hits)) < hits:
        hits = shorter
    return hits


def window_blocks(window: int, step_tokens: int, block_size: int) -> int:
    """Maximum number of blocks that one sequence holds in a group with this window."""
    return -(-(window + step_tokens) // block_size) + 1
