"""Lookup of a prompt in the tiers: a search of the RAM tier's index, and probes of the tiers that
store chunks (disk, Redis, object store).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.core.transfer import RAM, TransferKind, TransferResult
from penstock.kv.tiers.load import PrefixLoad
from penstock.kv.tiers.plan import Chunk, chunks_to_probe, tails_to_probe
from penstock.kv.tiers.transfers import TierContext
from penstock.kv.tiers.write_behind import WriteBehind


class TierLookup:
    def __init__(self, common: TierContext, write_behind: WriteBehind) -> None:
        self._transfers, self._index = common.transfers, common.index
        self._rates, self._stats = common.rates, common.stats
        self._per_chunk = common.shape.per_chunk
        self._write_behind = write_behind

    def probe(self, load: PrefixLoad, hits: int) -> None:
        """Query the tiers that store chunks for the chunks that follow the `hits` blocks in the
        pool and the blocks in RAM.
        """
        digests = load.digests
        self._stats.lookup_tokens += (len(digests) - hits) * load.block_size
        at = hits + (self._index.peek(list(digests[hits:])) if self._index is not None else 0)
        load.first_asked = at // self._per_chunk
        if at < len(digests):
            self._probe(load, chunks_to_probe(digests, at, self._per_chunk))

    def in_ram(self, load: PrefixLoad, hits: int) -> list[int]:
        """Slots in the RAM tier of the consecutive blocks from block `hits` on. The slots are held,
        so the index is searched only once. The search is repeated if the pool has lost blocks
        since.
        """
        index = self._index
        if index is None:
            return []
        if not load.looked or hits < load.ram_first:
            index.release(load.ram_slots)
            load.looked, load.ram_first = True, hits
            load.ram_slots = index.lookup(list(load.digests), hits)
            index.hold(load.ram_slots)
            found = len(load.ram_slots)
            self._count(RAM, found, len(load.digests) - hits - found)
        return load.ram_slots[hits - load.ram_first :]

    def hold_only_segments(self, load: PrefixLoad) -> None:
        """Release the held RAM slots that are in no chosen segment."""
        if self._index is not None and load.ram_slots:
            wanted = {slot for segment in load.segments for slot in segment.slots}
            self._index.release([slot for slot in load.ram_slots if slot not in wanted])
            load.ram_slots = []

    def _probe(self, load: PrefixLoad, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        keys = b"".join(digest for digest, _ in chunks)
        counts = [blocks for _, blocks in chunks]
        for tier in range(1, len(self._stats.tiers)):
            if not self._transfers.admits(tier):
                continue
            load.probes.append(tier)
            done = partial(self._probed, load, tier, chunks)
            self._transfers.begin(TransferKind.PROBE, tier, done, keys=keys, counts=counts)

    def _probed(
        self, load: PrefixLoad, tier: int, chunks: Sequence[Chunk], moved: TransferResult
    ) -> None:
        load.probes.remove(tier)
        hits = sum(moved.found)
        self._count(tier, hits, len(moved.found) - hits)
        if moved.error:
            self._stats.tiers[tier].errors += 1
        elif moved.done:
            self._rates.probed(tier, moved.waited + moved.seconds)
        for chunk, found in zip(chunks, moved.found, strict=False):
            if found:
                load.found[tier - 1].add(chunk)
                self._write_behind.know(tier, chunk[0])
            else:
                self._write_behind.forget(tier, chunk[0])
        if not load.probes and not load.deepened:
            self._deepen(load)

    def _deepen(self, load: PrefixLoad) -> None:
        """Probe for shorter forms (tails) of the first full chunk that no tier has."""
        load.deepened = True
        size, digests = self._per_chunk, load.digests
        found = set().union(*load.found)
        for chunk in range(load.first_asked, len(digests) // size):
            if (digests[(chunk + 1) * size - 1], size) not in found:
                self._probe(load, tails_to_probe(digests, chunk, size))
                return

    def _count(self, tier: int, hits: int, misses: int) -> None:
        stats = self._stats.tiers[tier]
        stats.hits += hits
        stats.misses += misses
