"""Operators' commands for the KV cache: clear, pin, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from penstock.core import KvAction, KvCommand, KvOutcome, KvReply
from penstock.engine.frontend import Tiers as TiersFrame
from penstock.engine.tiers import OpenedTiers
from penstock.kv import KvCache

REPORT_S = 1.0
"""Seconds between two reports on the tiers for the metrics page."""
NO_PINS = "pinned prefixes are kept in the RAM tier, and there is none: --kv-tier ram:SIZE"


class KvAdmin:
    """Executes operators' commands on the KV cache. `movers` returns each rank's report on its
    tiers.
    """

    def __init__(
        self, kv: KvCache, opened: OpenedTiers, movers: Callable[[], Iterable[str]]
    ) -> None:
        self.rates = opened.rates
        self.kv = kv
        self._opened = opened
        self._movers = movers
        self._next_report = 0.0

    def due(self, now: float) -> TiersFrame | None:
        """The next report on the tiers for the metrics page, about once a second. None if no report
        is due, or without tiers. `now`: clock time in seconds.
        """
        if self._opened.write_behind is None or now < self._next_report:
            return None
        self._next_report = now + REPORT_S
        return TiersFrame(json.dumps(self.report()))

    def report(self) -> dict[str, object]:
        """State and counters of the tiers, as a JSON object."""
        return self._opened.report(self._movers())

    def answer(self, command: KvCommand) -> KvReply:
        if self.kv.hasher is None:
            return KvReply(
                command.id, KvOutcome.REFUSED, "prefix caching is off: --enable-prefix-caching"
            )
        actions = {
            KvAction.CLEAR_ALL: self._clear_all,
            KvAction.CLEAR_SALT: self._clear_salt,
            KvAction.CLEAR_PREFIX: self._clear_prefix,
            KvAction.PIN: self._pin,
            KvAction.UNPIN: self._unpin,
            KvAction.REPORT: self._report,
        }
        try:
            done = actions[command.action](command)
        except ValueError as error:
            return KvReply(command.id, KvOutcome.REFUSED, str(error))
        return KvReply(command.id, KvOutcome.DONE, json.dumps(done))

    def clear(self) -> None:
        """Remove all cached KV that no sequence uses."""
        self._clear(b"")

    def _clear_all(self, _: KvCommand) -> dict[str, object]:
        return self._clear(b"")

    def _clear_salt(self, command: KvCommand) -> dict[str, object]:
        assert self.kv.hasher is not None
        return self._clear(self.kv.hasher.salt_group(command.cache_salt))

    def _clear(self, group: bytes) -> dict[str, object]:
        store = self._opened.write_behind
        ram = store.clear(group) if store is not None else 0
        return {"pool_blocks": self.kv.forget_all(group), "ram_blocks": ram}

    def _clear_prefix(self, command: KvCommand) -> dict[str, object]:
        digests, store = self._digests(command), self._opened.write_behind
        pool = sum(map(self.kv.forget, digests))
        ram = store.remove(digests) if store is not None else 0
        return {"blocks": len(digests), "pool_blocks": pool, "ram_blocks": ram}

    def _pin(self, command: KvCommand) -> dict[str, object]:
        digests, index = self._digests(command), self._opened.index
        if index is None:
            raise ValueError(NO_PINS)
        return {"blocks": len(digests), "pinned_blocks": index.pin(digests)}

    def _unpin(self, command: KvCommand) -> dict[str, object]:
        digests, index = self._digests(command), self._opened.index
        if index is not None:
            index.unpin(digests)
        return {"blocks": len(digests)}

    def _report(self, _: KvCommand) -> dict[str, object]:
        kv = self.kv
        return {
            "pool": {"blocks": kv.num_blocks, "used": kv.used, "named": kv.named},
            **self.report(),
        }

    def _digests(self, command: KvCommand) -> list[bytes]:
        assert self.kv.hasher is not None
        found = self.kv.hasher.digests(command.tokens, [], command.cache_salt)
        if not found:
            raise ValueError(
                f"{len(command.tokens)} tokens fill no block of {self.kv.block_size}: none is kept"
            )
        return found
