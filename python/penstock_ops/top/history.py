"""What was read of one address, and what follows from two readings. No IO, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock_ops.top.exposition import Page

READY, NOT_READY, DEAD, UNREAD = "ready", "not ready", "dead", "..."
"""States of every address. Replicas have those of their gateway, too."""

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
"""Counters whose increase is an error: metric, label that names the reason, words."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as its gateway sees it. Numbers that are not known are None."""

    address: str
    pool: str
    state: str
    """In the gateway's word: `ready`, `warming`, `ejected`, ..."""
    models: tuple[str, ...] = ()
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    tokens_out: float | None = None
    """Output tokens a second of streams through this gateway."""
    error: str = ""
    """Why it gets no requests, or fewer; else its last error."""
    error_seconds: float | None = None
    """Time since that error, by the gateway's clock."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of an address. Times are in seconds of a monotonic clock."""

    at: float
    state: str
    page: Page = field(default_factory=Page)
    error: str = ""
    """Why it is not ready; or what could not be read."""
    models: tuple[str, ...] = ()
    is_gateway: bool = False
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The last two readings that follow each other, and the last error."""

    latest: Reading | None = None
    previous: Reading | None = None
    """None unless the process is the same as that of `latest`."""
    failing_since: float | None = None
    """When the reading was made since which it is not ready; None while it is."""
    fault: str = ""
    """The last error that its counters have shown."""
    fault_at: float | None = None
    lost: Mapping[str, float] = field(default_factory=dict)
    """Replicas that are not ready, by address: the time of the reading since which they are not."""

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
        """Increase of a counter for each second between the two readings."""
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
    """The reading of a dead gateway with the replicas that it had: they may serve without it. What
    it knew of them is forgotten.
    """
    replicas = tuple(Replica(one.address, one.pool, UNREAD, one.models) for one in before.replicas)
    return replace(dead, models=before.models, is_gateway=before.is_gateway, replicas=replicas)


def restarted(before: Page, after: Page) -> bool:
    """Whether another process answers, or the same one with counters that have begun again."""
    name = "process_start_time_seconds"
    if before.total(name) != after.total(name) and before.total(name) is not None:
        return True
    counted = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
    return any((after.total(name) or 0.0) < (before.total(name) or 0.0) for name in counted)


def new_fault(before: Page, after: Page) -> str:
    """The errors that were counted between two readings, in words; empty if there were none."""
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
    """Answers of status 5xx. vLLM's pages have the class, those of other servers the number."""
    by_status = page.by("http_requests_total", "status").items()
    return sum(count for status, count in by_status if status.startswith("5"))
