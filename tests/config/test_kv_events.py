import json

import pytest

from penstock.config import EngineConfig, KvEventsConfig, Raw, resolve
from penstock.core import InvalidValueError, PenstockError

ON = {"enable_kv_cache_events": True, "publisher": "zmq"}


def resolved(given: object) -> KvEventsConfig | None:
    text = given if isinstance(given, str) else json.dumps(given)
    raw = {"kv_events_config": Raw("--kv-events-config", (text,))}
    engine = resolve(raw, "m", "n").engine
    assert EngineConfig.from_json(engine.to_json()) == engine
    return engine.cache.events


def test_the_settings_are_vllm_s() -> None:
    assert resolved(ON) == KvEventsConfig()
    given = ON | {"endpoint": "tcp://gateway:5600", "replay_endpoint": "tcp://*:5601"}
    given |= {"topic": "kv@pod", "buffer_steps": 5, "hwm": 7, "max_queue_size": 9}
    wanted = KvEventsConfig("tcp://gateway:5600", "tcp://*:5601", 5, 7, "kv@pod")
    assert resolved(given) == wanted
    assert resolved(ON | {"endpoint": "tcp://[::1]:1"}) == KvEventsConfig("tcp://[::1]:1")


@pytest.mark.parametrize(
    "given", [{}, {"enable_kv_cache_events": False}, ON | {"publisher": "null"}]
)
def test_nothing_is_published_unless_it_is_wanted(given: object) -> None:
    assert resolved(given) is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("[]", "JSON such as"),
        ("{", "JSON such as"),
        (ON | {"endpoint": "ipc:///run/x"}, "endpoint is 'ipc"),
        (ON | {"endpoint": None}, "endpoint is None"),
        (ON | {"replay_endpoint": 7}, "replay_endpoint is 7"),
        (ON | {"hwm": 0}, "hwm is 0"),
        (ON | {"topic": 1}, "topic is 1"),
        (ON | {"publisher": "kafka"}, "kafka"),
        (ON | {"endpont": "tcp://*:1"}, "endpont"),
    ],
)
def test_wrong_settings_are_named(given: object, wanted: str) -> None:
    with pytest.raises((InvalidValueError, PenstockError), match=wanted):
        resolved(given)
