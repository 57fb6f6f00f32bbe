from __future__ import annotations

import pytest

from penstock_ops.top.exposition import parse
from penstock_ops.top.history import History, Reading, Replica
from penstock_ops.top.rows import Quantiles, TierUse, rows
from tests.top.pages import gateway_text, server_page, server_text

TIERS = """\
penstock:kv_tier_used_bytes{tier="ram"} 1024
penstock:kv_tier_capacity_bytes{tier="ram"} 4096
penstock:kv_tier_skipped{tier="ram"} 1
penstock:kv_tier_hit_tokens_total{tier="ram"} %d
"""


def of(*readings: Reading) -> History:
    history = History()
    for reading in readings:
        history = history.followed_by(reading)
    return history


def test_a_server() -> None:
    first = Reading(10.0, "ready", server_page(more=TIERS % 5), models=("tiny",))
    times = {"0.1": 4, "0.5": 12, "+Inf": 12}
    page = server_page(300, 90, 75, times, more=TIERS % 45)
    second = Reading(12.0, "ready", page, models=("tiny",))
    (row,) = rows(["u"], {"u": of(first, second)}, {}, now=13.0)
    assert (row.kind, row.state, row.models, row.age) == ("server", "ready", ("tiny",), 1.0)
    assert (row.running, row.waiting, row.kv_use) == (3, 1, 0.5)
    assert (row.tokens_in, row.tokens_out, row.hit_share) == (100, 20, 0.25)
    assert row.ttft is not None
    assert row.ttft.p50 == pytest.approx(0.3)
    assert row.itl == Quantiles(row.ttft.p50, row.ttft.p99)
    assert row.tiers == (TierUse("ram", 1024, 4096, 0.2, True),)
    assert row.error == ""


def test_an_idle_server_has_no_latencies() -> None:
    reading = Reading(10.0, "ready", server_page())
    (row,) = rows(["u"], {"u": of(reading, Reading(11.0, "ready", server_page()))}, {}, 11.0)
    assert (row.ttft, row.itl, row.hit_share, row.tokens_out) == (None, None, None, 0)


def test_a_dead_one_has_a_row_with_what_failed_and_since_when() -> None:
    up = Reading(10.0, "ready", server_page(), models=("tiny",))
    dead = [Reading(at, "dead", error="connection refused") for at in (11.0, 12.0)]
    (row,) = rows(["u"], {"u": of(up, *dead)}, {}, now=21.0)
    assert (row.state, row.error, row.error_seconds) == ("dead", "connection refused", 10.0)
    assert row.running is None, "the last numbers are not shown as if they were new"


def test_one_that_does_not_answer_is_dead_after_a_while() -> None:
    history = of(Reading(10.0, "ready", server_page()))
    (row,) = rows(["u"], {"u": history}, {"u": 11.0}, now=12.0)
    assert row.state == "ready"
    (row,) = rows(["u"], {"u": history}, {"u": 11.0}, now=31.0)
    assert (row.state, row.error, row.error_seconds) == ("dead", "no answer", 20.0)
    (row,) = rows(["u"], {}, {"u": 11.0}, now=12.0)
    assert (row.state, row.age) == ("...", None)


def gateway(*replicas: Replica, at: float = 10.0) -> Reading:
    page = parse(gateway_text())
    return Reading(at, "ready", page, models=("tiny",), is_gateway=True, replicas=replicas)


def test_a_gateway_is_followed_by_its_replicas() -> None:
    own = Replica("10.0.0.1:8000", "a", "ready", ("tiny",), running=7, tokens_out=30)
    lost = Replica("10.0.0.2:8000", "a", "unhealthy", error="health check: refused")
    pages = (server_page(), server_page(200, 90, 50, started=1000))
    detail = of(*(Reading(10.0 + n, "ready", page) for n, page in enumerate(pages)))
    histories = {"g": of(gateway(own, lost)), "10.0.0.1:8000": detail}
    head, first, second = rows(["g"], histories, {}, now=15.0)
    assert (head.kind, head.running, head.waiting) == ("gateway", 2, 5)
    assert (head.tokens_in, head.tokens_out) == (100, 40), "the sums of its replicas"
    assert (first.kind, first.group, first.running) == ("replica", "g", 7)
    assert (first.tokens_out, first.tokens_in, first.waiting) == (40, 100, 1), "of its own page"
    assert (second.state, second.error) == ("unhealthy", "health check: refused")
    assert (second.error_seconds, second.tokens_out) == (5.0, None)


def test_a_replica_that_only_the_gateway_reaches() -> None:
    own = Replica("10.0.0.1:8000", "a", "ready", tokens_out=30, error="lost", error_seconds=9.0)
    detail = of(Reading(10.0, "dead", error="no route to host"))
    _, row = rows(["g"], {"g": of(gateway(own)), own.address: detail}, {}, now=10.0)
    assert (row.state, row.tokens_out, row.error, row.error_seconds) == ("ready", 30, "lost", 9.0)


def test_hits_of_an_engine_without_the_newer_counters() -> None:
    text = server_text().replace("prompt_tokens_cached", "unknown")
    pool = "vllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total %d\n"
    pages = (parse(text + pool % (100, 10)), parse(text + pool % (200, 60)))
    history = of(*(Reading(10.0 + n, "ready", page) for n, page in enumerate(pages)))
    (row,) = rows(["u"], {"u": history}, {}, 11.0)
    assert row.hit_share == 0.5


def test_a_dead_gateway_keeps_its_replicas_by_their_own_pages() -> None:
    replicas = [Replica(f"10.0.0.{n}:8000", "a", "ejected", ("m",), running=7) for n in (1, 2, 3)]
    dead = Reading(11.0, "dead", error="connection refused")
    histories = {
        "g": of(gateway(*replicas), dead, dead),
        replicas[0].address: of(Reading(11.0, "ready", server_page())),
        replicas[1].address: of(Reading(11.0, "dead", error="no route to host")),
    }
    head, up, down, unread = rows(["g"], histories, {}, now=13.0)
    assert (head.kind, head.state, head.error_seconds) == ("gateway", "dead", 2.0)
    assert head.tokens_out is None, "nothing goes through it"
    assert (up.state, up.running, up.models, up.error) == ("ready", 3, ("m",), "")
    assert (down.state, down.error, down.running) == ("dead", "no route to host", None)
    assert (unread.state, unread.running) == ("...", None)
    back = histories["g"].followed_by(gateway(*replicas, at=14.0))
    assert set(back.lost.values()) == {14.0}
