"""What operators ask of the cache: forget, pin, report."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.core import KvAction, KvCommand, KvOutcome, KvReply, TierReport
from penstock.engine.frontend import Tiers as TiersFrame
from penstock.engine.report import report_fields
from penstock.kv import KvCache
from penstock.kv_tiers import Tiers

REPORT_S = 1.0
"""Seconds between reports that nobody asked for."""


class KvAdmin:
    """`report` says what the tiers hold and did."""

    def __init__(
        self,
        kv: KvCache,
        tiers: Tiers,
        report: Callable[[], TierReport],
    ) -> None:
        self._kv = kv
        self._tiers = tiers
        self.report = report
        self._next_report = 0.0

    def due(self, now: float) -> TiersFrame | None:
        """A report for the metrics, about every second, where there are tiers."""
        if not self._tiers.present or now < self._next_report:
            return None
        self._next_report = now + REPORT_S
        return TiersFrame(json.dumps(report_fields(self.report())))

    def answer(self, command: KvCommand) -> KvReply:
        if self._kv.hasher is None:
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

    def _clear_all(self, _: KvCommand) -> dict[str, object]:
        return {"pool_blocks": self._kv.forget_all(), "ram_blocks": self._tiers.clear()}

    def _clear_salt(self, command: KvCommand) -> dict[str, object]:
        assert self._kv.hasher is not None
        group = self._kv.hasher.salt_group(command.cache_salt)
        return {"pool_blocks": self._kv.forget_all(group), "ram_blocks": self._tiers.clear(group)}

    def _clear_prefix(self, command: KvCommand) -> dict[str, object]:
        digests = self._digests(command)
        pool = sum(map(self._kv.forget, digests))
        return {
            "blocks": len(digests),
            "pool_blocks": pool,
            "ram_blocks": self._tiers.remove(digests),
        }

    def _pin(self, command: KvCommand) -> dict[str, object]:
        digests = self._digests(command)
        return {"blocks": len(digests), "pinned_blocks": self._tiers.pin(digests)}

    def _unpin(self, command: KvCommand) -> dict[str, object]:
        digests = self._digests(command)
        self._tiers.unpin(digests)
        return {"blocks": len(digests)}

    def _report(self, _: KvCommand) -> dict[str, object]:
        kv = self._kv
        return {
            "pool": {"blocks": kv.num_blocks, "used": kv.used, "named": kv.named},
            **report_fields(self.report()),
        }

    def _digests(self, command: KvCommand) -> list[bytes]:
        assert self._kv.hasher is not None
        found = self._kv.hasher.digests(command.tokens, [], command.cache_salt)
        if not found:
            raise ValueError(
                f"{len(command.tokens)} tokens fill no block of {self._kv.block_size}: none is kept"
            )
        return found
