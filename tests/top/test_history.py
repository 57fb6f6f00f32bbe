from __future__ import annotations

import pytest

from penstock_ops.top.exposition import parse
from penstock_ops.top.history import History, Reading, Replica
from tests.top.pages import server_page, server_text


def after(*readings: Reading) -> History:
    history = History()
    for reading in readings:
        history = history.followed_by(reading)
    return history


def test_rates_come_of_two_readings() -> None:
    first = Reading(10.0, "ready", server_page(generated=50))
    assert after(first).rate("vllm:generation_tokens_total") is None
    both = after(first, Reading(12.0, "ready", server_page(generated=250)))
    assert both.rate("vllm:generation_tokens_total") == 100
    assert both.rate("vllm:absent_total") is None


@pytest.mark.parametrize("later", [{"started": 2000}, {"generated": 10}])
def test_another_process_has_no_rates_at_first(later: dict[str, float]) -> None:
    first = Reading(10.0, "ready", server_page(generated=50))
    history = after(first, Reading(12.0, "ready", server_page(**later)))
    assert history.previous is None
    assert (history.fault, history.fault_at) == ("restarted", 12.0)


def test_a_dead_one_keeps_the_time_of_its_first_failure() -> None:
    dead = [Reading(at, "dead", error="connection refused") for at in (5.0, 6.0, 7.0)]
    assert after(*dead).failing_since == 5.0
    up = Reading(8.0, "ready", server_page())
    assert after(*dead, up).failing_since is None
    assert after(*dead, up).previous is None, "no rate over the time that it was away"


def test_errors_are_counted_from_the_first_reading_on() -> None:
    refused = 'vllm:admission_rejections_total{reason="queue_full"} '
    failed = 'http_requests_total{handler="/v1",status="5xx"} '
    texts = [f"{refused}{a}\n{failed}{b}\n" for a, b in ((7, 1), (7, 1), (9, 4))]
    pages = [parse(server_text(more=text)) for text in texts]
    first, second, third = (Reading(n * 1.0, "ready", page) for n, page in enumerate(pages))
    assert after(first, second).fault == "", "what was counted before is no news"
    found = after(first, second, third)
    assert found.fault == "2 refused (queue_full), 3 answers of status 5xx"
    assert found.fault_at == 2.0
    assert after(first, second, third, third).fault_at == 2.0, "it stays"


def test_a_counter_that_appears_counts_from_zero() -> None:
    text = 'http_requests_total{status="500"} 2\n'
    pages = (server_page(), server_page(more=text))
    assert after(*(Reading(0.0, "ready", page) for page in pages)).fault == (
        "2 answers of status 5xx"
    )


def test_replicas_that_are_not_ready_keep_their_time() -> None:
    def seen(at: float, state: str) -> Reading:
        replicas = (Replica("a:1", "p", state), Replica("b:1", "p", "ready"))
        return Reading(at, "ready", is_gateway=True, replicas=replicas)

    assert after(seen(1, "ejected"), seen(2, "unhealthy")).lost == {"a:1": 1}
    assert after(seen(1, "ejected"), seen(2, "ready"), seen(3, "ejected")).lost == {"a:1": 3}
