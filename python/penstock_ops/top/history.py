"""Poll results of one address, and values derived from two polls. No IO, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock_ops.top.exposition import Page

READY, NOT_READY, DEAD, UNREAD = "ready", "not ready", "dead", "..."
"""States of an address. A replica may also have a state reported by its gateway."""

FAULTS: tuple[tuple[str, str, str], ...] = (
    ("penstock:engine_restarts_total", "", "engine started again"),
    ("vllm:admission_rejections_total", "reason", "refused"),
    ("penstock:gateway_requests_refused_total", "", "refused: the gateway was full"),
    ("penstock:gateway_failovers_lost_total", "", "streams lost with their replica"),
    ("penstock:gateway_attempts_lost_total", "", "attempts that a replica refused or broke off"),
    ("penstock:gateway_queue_refused_total", "reason", "left the queue"),
    ("penstock:kv_tier_quarantined_chunks_total", "tier", "damaged chunks"),
    ("penstock:kv_tier_errors_total", "tier", "failed transfers"),
)
"""Counters whose increase is an error: metric, label with the reason, description."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as reported by its gateway. Unknown numbers are None."""

    address: str
    pool: str
    state: str
    """State in the gateway's terms: `ready`, `warming`, `ejected`, ..."""
    models: tuple[str, ...] = ()
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    tokens_out: float | None = None
    """Output tokens per second of streams through this gateway."""
    error: str = ""
    """Reason why the replica gets no requests, or fewer; else its last error."""
    error_seconds: float | None = None
    """Seconds since that error, according to the gateway."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of one poll of an address. Times are monotonic seconds."""

    at: float
    state: str
    page: Page = field(default_factory=Page)
    error: str = ""
    """Reason why the address is not ready, or which part could not be read."""
    models: tuple[str, ...] = ()
    is_gateway: bool = False
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The last two consecutive readings, and the last error."""

    latest: Reading | None = None
    previous: Reading | None = None
    """The reading before `latest`; None unless the same process served both."""
    failing_since: float | None = None
    """Time of the first reading in which the address was not ready; None while it is ready."""
    fault: str = ""
    """The last error indicated by the address's counters."""
    fault_at: float | None = None
    lost: Mapping[str, float] = field(default_factory=dict)
    """Replicas that are not ready, by address, each with the time of the first reading in which it
    was not.
    """

    def followed_by(self, reading: Reading) -> History:
        before = self.latest
        if before is not None and reading.state == DEAD:
            reading = with_replicas(reading, before)
        failing = reading.state in (DEAD, NOT_READY)
        began = reading.at if self.failing_since is None else self.failing_since
        since = began if failing else None
        lost = {
            replica.address: self.lost.get(replica.address, reading.at)
            for replica in reading.replicas
            if replica.state not in (READY, UNREAD)
        }
        next_one = replace(self, latest=reading, previous=None, failing_since=since, lost=lost)
        if before is None or DEAD in (before.state, reading.state):
            return next_one
        if restarted(before.page, reading.page):
            return replace(next_one, fault="restarted", fault_at=reading.at)
        if fault := new_fault(before.page, reading.page):
            next_one = replace(next_one, fault=fault, fault_at=reading.at)
        return replace(next_one, previous=before)

    def rate(self, name: str, **labels: str) -> float | None:
        """Increase of a counter per second between the two readings."""
        found = self.increase(name, **labels)
        if found is None or self.latest is None or self.previous is None:
            return None
        seconds = self.latest.at - self.previous.at
        return found / seconds if seconds > 0 else None

    def increase(self, name: str, **labels: str) -> float | None:
        if self.latest is None or self.previous is None:
            return None
        later = self.latest.page.total(name, **labels)
        earlier = self.previous.page.total(name, **labels)
        if later is None:
            return None
        return max(later - (earlier or 0.0), 0.0)


def with_replicas(dead: Reading, before: Reading) -> Reading:
    """The reading of a dead gateway, extended by its last known replicas: they may serve without
    the gateway. The gateway's data about them is dropped.
    """
    replicas = tuple(Replica(one.address, one.pool, UNREAD, one.models) for one in before.replicas)
    return replace(dead, models=before.models, is_gateway=before.is_gateway, replicas=replicas)


def restarted(before: Page, after: Page) -> bool:
    """Whether the process was replaced, or its counters were reset."""
    name = "process_start_time_seconds"
    if before.total(name) != after.total(name) and before.total(name) is not None:
        return True
    counted = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    return any((after.total(name) or 0.0) < (before.total(name) or 0.0) for name in counted)


def new_fault(before: Page, after: Page) -> str:
    """Text about the errors counted between two readings; empty if there were none."""
    found = []
    for name, label, words in FAULTS:
        earlier, later = counts(before, name, label), counts(after, name, label)
        for reason, count in later.items():
            if (more := count - earlier.get(reason, 0.0)) > 0:
                found.append(f"{more:.0f} {words}" + (f" ({reason})" if reason else ""))
    more = server_errors(after) - server_errors(before)
    if more > 0:
        found.append(f"{more:.0f} answers of status 5xx")
    return ", ".join(found)


def counts(page: Page, name: str, label: str) -> Mapping[str, float]:
    if label:
        return page.by(name, label)
    total = page.total(name)
    return {} if total is None else {"": total}


def server_errors(page: Page) -> float:
    """Number of responses with status 5xx. vLLM's pages have the status class as a label, other
    servers the status code.
    """
    by_status = page.by("http_requests_total", "status").items()
    return sum(count for status, count in by_status if status.startswith("5"))
