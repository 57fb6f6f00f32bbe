"""The table of `penstock route explain`."""

from __future__ import annotations

from typing import Any

from penstock_lab.route.explain import lines


def replica(address: str, cached: float, held: dict[str, int] | None) -> dict[str, Any]:
    return {
        "address": address,
        "condition": "ready",
        "waiting": 0.0,
        "running": 1.0,
        "kv_use": 0.25,
        "backlog_tokens": 0.0,
        "cached_tokens": cached,
        "held_tokens": held,
        "total": 1.0,
        "scores": [{"name": "prefix", "score": 0.5, "weight": 1.0}],
        "removed_by": None,
    }


def test_cached_tokens_are_weighted_and_named_by_tier_where_the_replica_said() -> None:
    tiers = {"pool": 1024, "ram": 256, "disk": 0, "shared": 16}
    answer = {
        "asked": "llama",
        "model": "llama",
        "pool": "p",
        "saturated": False,
        "priority": 0,
        "tenant": "",
        "prompt_tokens": 2000.0,
        "decision": "a:1: most of the prompt cached (1 running, 0 waiting) of 3",
        "unroutable": None,
        "replicas": [
            replica("a:1", 1257.6, tiers),
            replica("b:1", 64.0, None),
            replica("c:1", 0.0, dict.fromkeys(tiers, 0)),
        ],
    }
    assert answer["decision"] in lines(answer)
    a, b, c = (line.split("25%")[1].strip() for line in lines(answer)[-3:])
    assert a == "1,258 (pool 1,024 + ram 256 + shared 16)"
    assert (b, c) == ("64", "0")
