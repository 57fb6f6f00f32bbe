"""The replicas of a gateway, from `GET /replicas`, or from its metrics if it lacks that
endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from penstock_ops.top.exposition import Page, Sample
from penstock_ops.top.history import NOT_READY, READY, Replica

MOST = 512
"""Maximum number of replicas shown; more than a gateway has."""


def replicas_of_document(document: Mapping[str, Any]) -> tuple[Replica, ...]:
    """Replicas in the JSON of `GET /replicas`. Members of an undocumented type count as unknown."""
    now = number(document.get("time"))
    found = [
        replica(address, text(pool.get("name")), one, now)
        for pool in mappings(document.get("pools"))
        for one in mappings(pool.get("replicas"))
        if (address := text(one.get("address")))
    ]
    return tuple(found[:MOST])


def replica(address: str, pool: str, one: Mapping[str, Any], now: float | None) -> Replica:
    load, failed = mapping(one.get("load")), mapping(one.get("last_error"))
    state = text(one.get("condition")) or (READY if one.get("takes_requests") else NOT_READY)
    last, failed_at = text(failed.get("message")), number(failed.get("time"))
    reason = text(one.get("reason"))
    parts = [part for part in (reason, last) if part]
    is_known = now is not None and failed_at is not None and not reason
    models = one.get("models")
    return Replica(
        address=address,
        pool=pool,
        state=state,
        models=tuple(filter(None, map(text, models))) if isinstance(models, list) else (),
        running=number(load.get("running")),
        waiting=number(load.get("waiting")),
        kv_use=number(load.get("kv_use")),
        tokens_out=number(one.get("output_tokens_per_s")),
        error=": ".join(dict.fromkeys(parts)),
        error_seconds=max(now - failed_at, 0.0) if is_known and now and failed_at else None,
    )


def replicas_of_metrics(page: Page) -> tuple[Replica, ...]:
    """Replicas in a gateway's metrics page, which contains neither models nor reasons."""
    samples = page.samples.get("penstock:gateway_replica_ready", ())
    return tuple(replica_of_sample(page, sample) for sample in samples)[:MOST]


def replica_of_sample(page: Page, ready: Sample) -> Replica:
    address, pool = ready.labels.get("replica", ""), ready.labels.get("pool", "")

    def value(name: str) -> float | None:
        return page.total(f"penstock:gateway_replica_{name}", replica=address, pool=pool)

    return Replica(
        address,
        pool,
        READY if ready.value else NOT_READY,
        running=value("running"),
        waiting=value("waiting"),
        kv_use=value("kv_use"),
    )


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
