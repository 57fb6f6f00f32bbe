"""Reuse of KV blocks between prompts with a common prefix: hits in the prefix cache, claims on
blocks that are being computed, loads from tiers (RAM, disk, Redis, object store).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable

from penstock.kv import KvCache, Match
from penstock.kv.tiers import PrefixLoad, Tiers
from penstock.scheduler.checkpoints import first_checkpoints
from penstock.scheduler.sequence import Sequence

NOTHING = Match(0, 0)


class Prefixes:
    """The scheduler's interface to the prefix cache and the tiers.

    A running sequence claims the blocks that it will compute. Another sequence that needs such a
    block waits for it. A block's digest is published only when the step that filled it has been
    applied.
    """

    def __init__(self, kv: KvCache, tiers: Tiers, clock: Callable[[], float]) -> None:
        self.tiers = tiers
        self.query_tokens = 0
        self.hit_tokens = 0
        self._kv = kv
        self._clock = clock
        self._claimed: dict[bytes, Sequence] = {}
        self._admissions = self._compared = 0

    def find(self, seq: Sequence) -> Match | None:
        """The leading blocks of a waiting sequence that are in the prefix cache. None while the
        sequence has to wait, because a running sequence computes the next block that both can
        share, or because a tier lookup is pending.

        The last known token is always computed, because its logits are needed.
        """
        if self._kv.hasher is None:
            return NOTHING
        if seq.awaits in self._claimed:
            return None
        self._add_digests(seq)
        if not seq.reads_cache:
            return NOTHING
        limit = (len(seq.tokens) - 1) // self._kv.block_size
        found = self._kv.find_prefix(seq.digests, limit)
        if found.hits < limit and self._awaits(seq, found.hits, limit):
            return None
        hits = self.tiers.lookup(seq.load, seq.digests, found.hits)
        return None if hits is None else Match(found.kv, hits)

    def expect(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> None:
        """Let `running` sequences make the state checkpoints that `waiting` ones will begin at,
        whose turn has not come yet. Each is compared once, and again after the admission of a
        sequence that will compute one of its blocks.
        """
        added = [seq for seq in running if seq.admission > self._compared]
        self._compared = self._admissions
        for seq in waiting:
            again = any(_computes(other, seq) for other in added)
            if not seq.reads_cache or (seq.expected and not again):
                continue
            seq.expected = True
            self._add_digests(seq)
            limit = (len(seq.tokens) - 1) // self._kv.block_size
            found = self._kv.find_prefix(seq.digests, limit)
            if found.hits < limit:
                self._awaits(seq, found.hits, limit)

    def _awaits(self, seq: Sequence, hits: int, limit: int) -> bool:
        """Whether a waiting sequence, with `hits` blocks in the cache, has to wait until a running
        one has computed blocks that both share.

        With sequence state, KV alone is of no use. So the running sequence makes a checkpoint where
        the two part. If it is past that position, the waiting one does not wait.
        """
        claimant = self._claimed.get(seq.digests[hits])
        if claimant is None:
            return False
        end = hits + 1
        if self._kv.has_state:
            end = _common(seq.digests[:limit], claimant.digests, end)
            position = end * self._kv.block_size
            if position <= claimant.scheduled and position not in claimant.checkpoints:
                return False
            claimant.checkpoints.add(position)
            if position > claimant.scheduled:
                self._kv.states.keep(claimant.table.state, position)
        seq.awaits = seq.digests[end - 1]
        return True

    def admitted(self, seq: Sequence, found: Match) -> None:
        """Start an admitted sequence after its hit. Claim the blocks that it will compute, and
        start its load from the tiers. Blocks with KV but without a state checkpoint are computed
        again, so they are claimed too.
        """
        size, hits = self._kv.block_size, found.hits
        self._admissions += 1
        seq.admission, seq.expected = self._admissions, False
        seq.rewind(hits * size)
        if seq.first_schedule < 0:
            self._count_first(seq)
        seq.awaits = b""
        seq.published = hits
        seq.checkpoints = first_checkpoints(self._kv, len(seq.tokens), found)
        seq.publish_at = sys.maxsize if self._kv.hasher is None else (hits + 1) * size
        for digest in seq.digests[hits:]:
            self._claimed.setdefault(digest, seq)
        self.tiers.start(seq.load, seq.table.groups)

    def _count_first(self, seq: Sequence) -> None:
        seq.first_schedule = self._clock()
        seq.cached_tokens = min(seq.computed, seq.prompt_len)
        if self._kv.hasher is not None and seq.reads_cache:
            self.query_tokens += len(seq.tokens)
            self.hit_tokens += seq.computed

    def publish(self, seq: Sequence) -> None:
        """Publish the digests of the sequence's blocks that are now fully computed, so that other
        sequences can share them.
        """
        if self._kv.hasher is None:
            return
        size, first = self._kv.block_size, seq.published
        full = seq.computed // size
        if len(seq.digests) < full:
            self._add_digests(seq)
        for at in range(first, full):
            digest = seq.digests[at]
            self._kv.publish(seq.table, at, digest)
            if self._claimed.get(digest) is seq:
                del self._claimed[digest]
        self._kv.report_stored(seq.tokens, seq.digests, first, full)
        blocks = self._held(seq, first, full)
        self.tiers.published(seq.digests, full, blocks, seq.prompt_len // size)
        seq.published = full
        seq.publish_at = (full + 1) * size

    def unclaim(self, seq: Sequence) -> None:
        """Release the sequence's claims, so that other sequences may compute these blocks."""
        for digest in seq.digests[seq.published :]:
            if self._claimed.get(digest) is seq:
                del self._claimed[digest]

    def left(self, seq: Sequence, preempted: bool = False) -> None:
        """Release the claims and the load of a sequence that ends or loses its slot. The published
        blocks of a preempted one are offloaded to the RAM tier.
        """
        published = seq.published if seq.slot >= 0 else 0
        if seq.slot >= 0:
            self.unclaim(seq)
        offload = self._held(seq, 0, published) if preempted and seq.reads_cache else ()
        self.tiers.released(seq.load, seq.digests, published, offload)
        seq.load = PrefixLoad(barred=seq.load.lost)

    def _held(self, seq: Sequence, first: int, end: int) -> list[array[int]]:
        """The sequence's block numbers in each KV group, from table entry `first` to `end`. If a
        group has released leading blocks behind its sliding window, its list starts later.
        """
        first = min(max(first, *seq.table.behind), end)
        return [blocks[first:end] for blocks in seq.table.groups]

    # Loads ----------------------------------------------------------------------------------------

    @property
    def offloading(self) -> bool:
        """Whether blocks of preempted sequences are being copied to a tier, after which they become
        free.
        """
        return self.tiers.offloading

    def computable(self, seq: Sequence) -> int:
        """Number of tokens that the sequence may compute now: those that remain before the load
        segment that it waits for.
        """
        return seq.load.limit(seq.scheduled + seq.remaining()) - seq.scheduled

    def scheduling(self, seq: Sequence, end: int) -> None:
        """Inform the tiers that tokens up to `end` are being computed and need not be loaded."""
        self.tiers.limit(seq.load, end)

    def advance(self, seq: Sequence) -> None:
        """Advance the sequence past tokens whose KV was loaded. The sequence must not be in
        flight.
        """
        before = seq.computed
        computed = seq.load.advance(before, len(seq.tokens))
        if computed == before:
            return
        seq.rewind(computed)
        if seq.first_output:
            loaded = seq.cached_tokens + computed - before
            seq.cached_tokens = min(loaded, seq.prompt_len - 1)
            seq.tier_tokens = seq.load.tier_tokens()
        if computed >= seq.publish_at:
            self.publish(seq)

    def claimants(self) -> list[Sequence]:
        """Sequences that hold claims, for the consistency check in `SequenceTable.check`."""
        return list(self._claimed.values())

    def _add_digests(self, seq: Sequence) -> None:
        if self._kv.hasher is not None:
            salt, adapter = seq.request.cache_salt, seq.request.adapter
            seq.digests.extend(self._kv.hasher.digests(seq.tokens, seq.digests, salt, adapter))


def _common(digests: list[bytes], others: list[bytes], least: int) -> int:
    """Number of leading digests that two lists share; they share at least `least`. A digest covers
    all blocks before it, so the lists differ from their first difference on.
    """
    ends = range(least + 1, min(len(digests), len(others)) + 1)
    return least + bisect_left(ends, 1, key=lambda end: digests[end - 1] != others[end - 1])


def _computes(admitted: Sequence, waiting: Sequence) -> bool:
    """Whether the first block that an admitted sequence computes is one of the waiting one."""
    block = slice(admitted.published, admitted.published + 1)
    return admitted.digests[block] == waiting.digests[block]
