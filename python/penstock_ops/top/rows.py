"""The rows of the table: one for each address, and one below a gateway for each replica. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock_ops.top.exposition import Page, increase, quantile
from penstock_ops.top.history import DEAD, READY, UNREAD, History, Replica

LATE = 6.0
"""Seconds without an answer after which an address counts as dead."""

SERVER = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds",
)
GATEWAY = (
    "penstock:gateway_requests_open",
    "penstock:gateway_queue_requests",
    "penstock:gateway_time_to_first_token_seconds",
)
"""Metric names of running requests, waiting requests, and the time to first token."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles in seconds of the values observed between two polls."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class TierUse:
    """Use of a KV tier. Sizes are in bytes; a capacity of 0 means unknown."""

    name: str
    used: float
    capacity: float
    hit_share: float | None
    """Share of the prompt tokens that were loaded from the tier since the last poll."""
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. Rates are per second, shares from 0 to 1, times in seconds. None means
    unknown, or that nothing happened since the last poll.
    """

    name: str
    kind: Literal["server", "gateway", "replica"]
    state: str
    group: str
    """Address given by the user. Rows of a gateway and its replicas have the same group and stay
    together.
    """
    models: tuple[str, ...] = ()
    running: float | None = None
    waiting: float | None = None
    tokens_in: float | None = None
    tokens_out: float | None = None
    kv_use: float | None = None
    hit_share: float | None = None
    ttft: Quantiles | None = None
    itl: Quantiles | None = None
    tiers: tuple[TierUse, ...] = ()
    error: str = ""
    error_seconds: float | None = None
    """Seconds since the error began."""
    age: float | None = None
    """Seconds since the last poll."""


def rows(
    given: Sequence[str],
    histories: Mapping[str, History],
    waiting_since: Mapping[str, float],
    now: float,
) -> list[Row]:
    """Rows of the given addresses, in their order. `waiting_since`: start time of a request that
    has no response yet.
    """
    found = []
    for address in given:
        history = histories.get(address, History())
        since = waiting_since.get(address)
        replicas = [
            replica_row(address, replica, history, histories.get(replica.address, History()), now)
            for replica in (history.latest.replicas if history.latest else ())
        ]
        own = own_row(address, history, since, now)
        found += [own if own.state == DEAD else with_sums(own, replicas), *replicas]
    return found


def with_sums(row: Row, replicas: Sequence[Row]) -> Row:
    """A gateway's row with the token rates summed over its replicas, because a gateway does not
    count tokens.
    """
    tokens_in = [one.tokens_in for one in replicas if one.tokens_in is not None]
    tokens_out = [one.tokens_out for one in replicas if one.tokens_out is not None]
    return replace(
        row,
        tokens_in=sum(tokens_in) if tokens_in else row.tokens_in,
        tokens_out=sum(tokens_out) if tokens_out else row.tokens_out,
    )


def own_row(address: str, history: History, since: float | None, now: float) -> Row:
    """The row of an address given by the user. A row without a response has no numbers."""
    latest = history.latest
    kind: Literal["server", "gateway"] = "gateway" if latest and latest.is_gateway else "server"
    models = latest.models if latest else ()
    row = Row(address, kind, latest.state if latest else UNREAD, address, models)
    late = since is not None and now - since > LATE
    if latest is not None and latest.state != DEAD and not late:
        row = measured(row, history)
    age = now - latest.at if latest else None
    if late and since is not None and not (latest and latest.state == DEAD):
        return replace(row, state=DEAD, error="no answer", error_seconds=now - since, age=age)
    return replace(with_error(row, history, now), age=age)


def with_error(row: Row, history: History, now: float) -> Row:
    """The row with the present error, else with the last error counted."""
    latest = history.latest
    if latest is not None and latest.error:
        since = history.failing_since
        return replace(
            row, error=latest.error, error_seconds=None if since is None else now - since
        )
    if history.fault and history.fault_at is not None:
        return replace(row, error=history.fault, error_seconds=now - history.fault_at)
    return row


def replica_row(address: str, replica: Replica, of: History, detail: History, now: float) -> Row:
    """A replica's row: data from its gateway, with the rates of the replica's own page if
    available. `of` is the gateway's history, `detail` the replica's.
    """
    state, models = replica.state, replica.models
    if state == UNREAD and detail.latest is not None:
        state = detail.latest.state
    row = Row(replica.address, "replica", state, address, models=models)
    if detail.latest is not None and (detail.latest.state != DEAD or state == DEAD):
        row = with_error(measured(row, detail), detail, now)
    row = replace(
        row,
        age=now - detail.latest.at if detail.latest else None,
        models=replica.models or row.models,
        running=first(replica.running, row.running),
        waiting=first(replica.waiting, row.waiting),
        kv_use=first(replica.kv_use, row.kv_use),
        tokens_out=first(row.tokens_out, replica.tokens_out),
    )
    if replica.state not in (READY, UNREAD):
        since = of.lost.get(replica.address)
        lost = None if since is None else now - since
        return replace(row, error=replica.error or row.error or replica.state, error_seconds=lost)
    if replica.error and not row.error:
        return replace(row, error=replica.error, error_seconds=replica.error_seconds)
    return row


def first(one: float | None, other: float | None) -> float | None:
    return other if one is None else one


def measured(row: Row, history: History) -> Row:
    """The row with the numbers from its metrics pages."""
    latest = history.latest
    assert latest is not None
    page = latest.page
    running, waiting, first_token = GATEWAY if latest.is_gateway else SERVER
    return replace(
        row,
        models=latest.models,
        running=page.total(running),
        waiting=first(page.total(waiting), empty_queue(page)),
        tokens_in=history.rate("vllm:prompt_tokens_total"),
        tokens_out=history.rate("vllm:generation_tokens_total"),
        kv_use=page.most("vllm:kv_cache_usage_perc"),
        hit_share=hit_share(history),
        ttft=quantiles(history, first_token),
        itl=quantiles(history, "vllm:inter_token_latency_seconds"),
        tiers=tiers(history),
    )


def empty_queue(page: Page) -> float | None:
    """0 if the gateway has a queue, else None. An empty queue has no metric for any priority."""
    return 0.0 if page.total("penstock:gateway_queue_bytes") is not None else None


def hit_share(history: History) -> float | None:
    """Share of the prompt tokens that were not computed, but found in the pool or in a tier. For a
    gateway, the share that it predicted.
    """
    for hits, all_tokens in (
        ("vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total"),
        ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        (
            "penstock:gateway_cached_tokens_expected_total",
            "penstock:gateway_prompt_tokens_total",
        ),
    ):
        some, every = history.increase(hits), history.increase(all_tokens)
        if some is not None and every:
            return min(some / every, 1.0)
    return None


def quantiles(history: History, name: str) -> Quantiles | None:
    if history.latest is None or history.previous is None:
        return None
    between = increase(history.latest.page.buckets(name), history.previous.page.buckets(name))
    middle, most = quantile(between, 0.5), quantile(between, 0.99)
    return None if middle is None or most is None else Quantiles(middle, most)


def tiers(history: History) -> tuple[TierUse, ...]:
    if history.latest is None:
        return ()
    page = history.latest.page
    used = page.by("penstock:kv_tier_used_bytes", "tier")
    capacity = page.by("penstock:kv_tier_capacity_bytes", "tier")
    skipped = page.by("penstock:kv_tier_skipped", "tier")
    prompt = history.increase("vllm:prompt_tokens_total")
    found = []
    for name, size in used.items():
        hits = history.increase("penstock:kv_tier_hit_tokens_total", tier=name)
        share = min(hits / prompt, 1.0) if hits is not None and prompt else None
        found.append(TierUse(name, size, capacity.get(name, 0.0), share, bool(skipped.get(name))))
    return tuple(found)
