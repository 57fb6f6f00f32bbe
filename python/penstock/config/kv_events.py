"""`--kv-events-config`: settings of the publisher of KV events, in vLLM's JSON format."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from penstock.config.kinds import PartError

_ENDPOINT = re.compile(r"tcp://[^/:\s]+:\d{1,5}|tcp://\[[^\s\]]+\]:\d{1,5}")
_OWN = ("enable_kv_cache_events", "publisher", "max_queue_size")


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """Settings of the publisher of KV events. The defaults are vLLM's."""

    endpoint: str = "tcp://*:5557"
    """Address to listen on if it contains `*`, else to connect to."""
    replay_endpoint: str | None = None
    """Address at which subscribers can request past batches again; None: no replay."""
    buffer_steps: int = 10_000
    """Number of past batches kept for replay."""
    hwm: int = 100_000
    """Maximum number of batches queued for one subscriber."""
    topic: str = ""


@dataclass(frozen=True)
class KvEvents:
    """The kind of value of --kv-events-config; None if events are not enabled in it."""

    def parse(self, text: str) -> KvEventsConfig | None:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError
        known = {field.name for field in fields(KvEventsConfig)}
        for name in given:
            if name not in known and name not in _OWN:
                names = ", ".join(sorted({*known, *_OWN}))
                raise PartError(f"has {name!r}; known are {names}", name)
        publisher = given.get("publisher", "zmq")
        if publisher not in ("zmq", "null"):
            raise PartError(f"publisher is {publisher!r}; expected zmq or null", "publisher")
        found = KvEventsConfig(**{key: value for key, value in given.items() if key in known})
        _check(found)
        on = given.get("enable_kv_cache_events", False)
        return found if on and publisher == "zmq" else None

    def expected(self) -> str:
        return 'JSON such as {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'


def _check(found: KvEventsConfig) -> None:
    values: dict[str, Any] = asdict(found)
    for name, value in values.items():
        if name.endswith("endpoint"):
            absent = value is None and name == "replay_endpoint"
            right = absent or (isinstance(value, str) and _ENDPOINT.fullmatch(value))
            expected = "tcp://*:PORT or tcp://HOST:PORT"
        elif name == "topic":
            right, expected = isinstance(value, str), "a text"
        else:
            right = isinstance(value, int) and 1 <= value <= 10**7
            expected = "an integer, 1 to 10000000"
        if not right:
            raise PartError(f"{name} is {value!r}; expected {expected}", name)
