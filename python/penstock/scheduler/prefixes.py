"""Reuse of KV blocks between prompts with a common prefix: hits in the prefix cache, claims on
blocks that are being computed, loads from tiers (RAM, disk, Redis, object store).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable

from penstock.kv import KvCache
from penstock.kv.tiers import PrefixLoad, Tiers
from penstock.scheduler.sequence import Sequence


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

    def find(self, seq: Sequence) -> int | None:
        """Number of leading blocks of a waiting sequence that are in the prefix cache. None while
        the sequence has to wait, because a running sequence computes the next block that both can
        share, or because a tier lookup is pending.

        The last known token is always computed, because its logits are needed.
        """
        if self._kv.hasher is None:
            return 0
        if seq.awaits in self._claimed:
            return None
        self._add_digests(seq)
        if not seq.reads_cache:
            return 0
        limit = (len(seq.tokens) - 1) // self._kv.block_size
        hits = self._kv.find_prefix(seq.digests, limit)
        if hits < limit and seq.digests[hits] in self._claimed:
            seq.awaits = seq.digests[hits]
            return None
        return self.tiers.lookup(seq.load, seq.digests, hits)

    def admitted(self, seq: Sequence, hits: int) -> None:
        """Start an admitted sequence after its first `hits` blocks, which are cached. Claim the
        blocks that it will compute, and start its load from the tiers.
        """
        size = self._kv.block_size
        seq.rewind(hits * size)
        if seq.first_schedule < 0:
            self._count_first(seq)
        seq.awaits = b""
        seq.published = hits
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
