"""What tiers have of a prompt: RAM says at once, the others are asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.core.transfer import RAM, Moved, TransferKind
from penstock.kv_tiers.contract import Index
from penstock.kv_tiers.counts import Counts
from penstock.kv_tiers.fetch import Fetch
from penstock.kv_tiers.pieces import Chunk, chunks_to_ask, parts_to_ask
from penstock.kv_tiers.rates import Rates
from penstock.kv_tiers.stores import Stores
from penstock.kv_tiers.transfers import Transfers


class Finder:
    def __init__(
        self,
        transfers: Transfers,
        index: Index | None,
        stores: Stores,
        rates: Rates,
        counts: Counts,
        per_chunk: int,
    ) -> None:
        self._transfers = transfers
        self._index = index
        self._stores = stores
        self._rates = rates
        self._counts = counts
        self._per_chunk = per_chunk
        self._named = range(1, len(counts.tiers))

    def ask(self, fetch: Fetch, hits: int) -> None:
        """Which chunks behind the `hits` blocks of the pool, and behind those in RAM, do the others
        have?
        """
        self._counts.lookup_tokens += (len(fetch.digests) - hits) * fetch.block_size
        at = hits + (self._index.peek(fetch.digests[hits:]) if self._index is not None else 0)
        fetch.first_asked = at // self._per_chunk
        if at < len(fetch.digests):
            self._probe(fetch, chunks_to_ask(fetch.digests, at, self._per_chunk))

    def in_ram(self, fetch: Fetch, hits: int) -> list[int]:
        """Where RAM has the blocks from `hits` on. They are held, so it is asked once, unless the
        pool lost blocks meanwhile.
        """
        index = self._index
        if index is None:
            return []
        if not fetch.looked or hits < fetch.ram_first:
            index.release(fetch.ram_slots)
            fetch.looked, fetch.ram_first = True, hits
            fetch.ram_slots = index.lookup(fetch.digests, hits)
            index.hold(fetch.ram_slots)
            found = len(fetch.ram_slots)
            self._counts.probed(RAM, found, len(fetch.digests) - hits - found)
        return fetch.ram_slots[hits - fetch.ram_first :]

    def hold_only_pieces(self, fetch: Fetch) -> None:
        """Let go of what was held in RAM and is in no piece."""
        if self._index is not None and fetch.ram_slots:
            wanted = {slot for piece in fetch.pieces for slot in piece.slots}
            self._index.release([slot for slot in fetch.ram_slots if slot not in wanted])
            fetch.ram_slots = []

    def _probe(self, fetch: Fetch, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        keys = b"".join(digest for digest, _ in chunks)
        counts = [blocks for _, blocks in chunks]
        for tier in self._named:
            fetch.probes.append(tier)
            done = partial(self._probed, fetch, tier, chunks)
            self._transfers.begin(TransferKind.PROBE, tier, done, keys=keys, counts=counts)

    def _probed(self, fetch: Fetch, tier: int, chunks: Sequence[Chunk], moved: Moved) -> None:
        fetch.probes.remove(tier)
        hits = sum(moved.found)
        self._counts.probed(tier, hits, len(moved.found) - hits)
        if moved.error:
            self._counts.failed(tier)
        else:
            self._rates.probed(tier, moved.waited + moved.seconds)
        for chunk, found in zip(chunks, moved.found, strict=False):
            if found:
                fetch.found[tier - 1].add(chunk)
                self._stores.know(tier, chunk[0])
            else:
                self._stores.forget(tier, chunk[0])
        if not fetch.probes and not fetch.deepened:
            self._deepen(fetch)

    def _deepen(self, fetch: Fetch) -> None:
        """After the first full chunk that is nowhere, a shorter one may be there."""
        fetch.deepened = True
        size, digests = self._per_chunk, fetch.digests
        found = set().union(*fetch.found)
        for chunk in range(fetch.first_asked, len(digests) // size):
            if (digests[(chunk + 1) * size - 1], size) not in found:
                self._probe(fetch, parts_to_ask(digests, chunk, size))
                return
