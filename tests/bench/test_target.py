"""Finding out what a server serves, and saying clearly when it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

import penstock_lab.bench.target as target_module
from penstock.config.machine import free_port
from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.target import (
    Address,
    NoAnswerError,
    StatusError,
    Target,
    Wanted,
    base_url,
    discover,
    wait_ready,
)
from tests.bench.servers import models, serving
from tests.limits import HANG

WANTED = Wanted("openai", "/v1/completions", None, None)


def named(model: str | None, served: str | None = None) -> Wanted:
    return Wanted("openai", "/v1/completions", model, served)


def closed_address() -> str:
    """An address without a listener."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://gateway/team/v1", "https://gateway/team"),
        ("localhost:8000", "http://localhost:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_base_urls(text: str, expected: str) -> None:
    assert base_url(text) == expected


@pytest.mark.parametrize(
    "text", ["", "ftp://host", "http://", "http://host:99999", "http://host/?a=b"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--base-url"):
        base_url(text)


def test_the_first_model_unless_one_is_wanted() -> None:
    listed = models({"id": "a", "root": "org/a", "max_model_len": 512}, {"id": "b"})
    with serving(lambda *_: (200, listed)) as url:
        target = discover(Address(url), WANTED)
        assert (target.model, target.model_id, target.max_model_len) == ("a", "org/a", 512)
        target = discover(Address(url), named("b"))
        assert (target.model, target.model_id, target.max_model_len) == ("b", "b", None)


def test_a_served_name_is_what_requests_say_and_the_model_what_it_is() -> None:
    with serving(
        lambda *_: (200, models({"id": "alias", "max_model_len": 64}, {"id": "other"}))
    ) as url:
        target = discover(Address(url), named("org/model", "alias"))
        assert (target.model, target.model_id, target.max_model_len) == ("alias", "org/model", 64)


def test_a_lone_model_tells_its_length_whatever_it_is_called() -> None:
    with serving(lambda *_: (200, models({"id": "/path/model.gguf", "max_model_len": 64}))) as url:
        assert discover(Address(url), named("smollm2")).max_model_len == 64


def test_a_server_without_a_list_will_do_when_the_model_is_given() -> None:
    with serving(lambda *_: (404, "no such page")) as url:
        assert discover(Address(url), named("m")).model == "m"
        with pytest.raises(StatusError, match=r"/v1/models answered 404: no such page"):
            discover(Address(url), WANTED)


def test_an_empty_list_asks_for_the_model() -> None:
    with serving(lambda *_: (200, models())) as url, pytest.raises(PenstockError, match="--model"):
        discover(Address(url), WANTED)


def test_without_a_listener_the_address_is_named() -> None:
    url = closed_address()
    with pytest.raises(NoAnswerError, match=f"{url}/v1/models.*is a server running there"):
        discover(Address(url), named("m"))


def test_a_missing_key_names_the_remedy() -> None:
    def handle(_path: str, headers: Mapping[str, str]) -> tuple[int, object]:
        return (
            (200, models({"id": "m"}))
            if headers.get("authorization") == "Bearer k"
            else (401, "no key")
        )

    with serving(handle) as url:
        with pytest.raises(
            StatusError, match=r"401: no key; give a key with --header .* or OPENAI_API_KEY"
        ):
            discover(Address(url), named("m"))
        assert discover(Address(url, (("Authorization", "Bearer k"),)), WANTED).model == "m"


def test_something_else_than_json_is_shown() -> None:
    with (
        serving(lambda *_: (200, "<html>hello")) as url,
        pytest.raises(PenstockError, match="<html>hello"),
    ):
        discover(Address(url), WANTED)


def test_prompts_ask_without_errors_for_a_status() -> None:
    with serving(lambda path, _: (404, {"no": path})) as url:
        reply = Address(url).reply("POST", "/tokenize", {"prompt": "a"})
        assert (reply.status, reply.body) == (404, {"no": "/tokenize"})


def test_ready_by_health_however_it_says_so() -> None:
    with serving(lambda path, _: (200, "OK") if path == "/health" else (500, "")) as url:
        wait_ready(Address(url), HANG)


def test_ready_by_models_where_there_is_no_health() -> None:
    with serving(lambda path, _: (404, "") if path == "/health" else (200, models())) as url:
        wait_ready(Address(url), HANG)


def test_a_server_that_loads_is_waited_for() -> None:
    answers = [(503, "loading"), (503, "loading"), (200, "")]
    pauses: list[float] = []
    with serving(lambda *_: answers.pop(0)) as url:
        wait_ready(Address(url), HANG, pauses.append)
    assert len(pauses) == 2
    assert not answers


def test_patience_ends_with_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.0, HANG])
    monkeypatch.setattr(target_module, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    with (
        serving(lambda *_: (503, "loading")) as url,
        pytest.raises(PenstockError, match=r"not ready within 300 s: .*503: loading"),
    ):
        wait_ready(Address(url), HANG)


def test_what_the_load_generator_is_told() -> None:
    address = Address("https://gateway/team", (("X-Team", "a"),), insecure=True)
    target = Target(address, "openai-chat", "/v1/chat/completions", "m", "m", idle_timeout=5.0)
    told = json.loads(target.load_run(7, keep_text=True))
    assert (told["base_url"], told["path"]) == ("https://gateway", "/team/v1/chat/completions")
    assert told["headers"]["X-Team"] == "a"
    assert (told["max_concurrency"], told["idle_timeout_s"]) == (7, 5.0)
    assert told["insecure"]
    assert told["keep_text"]
