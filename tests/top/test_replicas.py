from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.top.exposition import parse
from penstock_ops.top.replicas import replicas_of_document, replicas_of_metrics
from tests.top.pages import document, gateway_text

READY: dict[str, Any] = {
    "name": "7f3a90c1",
    "address": "10.0.0.1:8000",
    "models": ["llama"],
    "condition": "ready",
    "takes_requests": True,
    "reason": None,
    "load": {"running": 3, "waiting": 0, "kv_use": 0.12},
    "output_tokens_per_s": 212.5,
    "last_error": {"time": 940.5, "message": "answered 503"},
}


def test_a_ready_replica_with_an_old_error() -> None:
    (found,) = replicas_of_document(json.loads(document(READY)))
    assert (found.address, found.pool, found.state, found.models) == (
        "10.0.0.1:8000",
        "a",
        "ready",
        ("llama",),
    )
    assert (found.running, found.waiting, found.kv_use, found.tokens_out) == (3, 0, 0.12, 212.5)
    assert (found.error, found.error_seconds) == ("answered 503", 59.5)


def test_one_that_is_ejected_says_why() -> None:
    ejected = {**READY, "condition": "ejected", "reason": "breaker open", "load": None}
    (found,) = replicas_of_document(json.loads(document(ejected)))
    assert (found.state, found.error) == ("ejected", "breaker open: answered 503")
    assert (found.running, found.error_seconds) == (None, None)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*READY, "x"]), inner),
)


@given(TREES, TREES)
def test_any_document_is_read(value: object, other: object) -> None:
    replicas_of_document({"time": other, "pools": value})
    replicas_of_document({"time": other, "pools": [{"name": other, "replicas": [value, other]}]})
    for name in READY:
        replicas_of_document({"time": 1, "pools": [{"replicas": [{**READY, name: value}]}]})


def test_metrics_of_an_older_gateway() -> None:
    first, second = replicas_of_metrics(parse(gateway_text(1, 0)))
    assert (first.address, first.pool, first.state, first.running, first.waiting) == (
        "10.0.0.1:8000",
        "a",
        "ready",
        1,
        None,
    )
    assert second.state == "not ready"
