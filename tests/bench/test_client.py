"""Feeding the load generator, and what a signal does to a load."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.core import PenstockError
from penstock_lab.bench import client
from penstock_lab.bench.body import Body
from penstock_lab.bench.client import run_load
from penstock_lab.bench.progress import Silent
from penstock_lab.bench.prompts.lazy import LazyRequests
from penstock_lab.bench.request import Load, Request
from penstock_lab.bench.target import Address, Target
from tests.fakes.load import Answer, PlayedRun

TARGET = Target(Address("http://none"), "openai", "/v1/completions", "m", "m")


def load(
    requests: Sequence[Request],
    *,
    limit: int | None = None,
    ignore_eos: bool = False,
    **options: Any,
) -> tuple[Load, PlayedRun]:
    """A load against `PlayedRun` with these options, and what was played."""
    made: list[PlayedRun] = []

    def open_run(description: str) -> PlayedRun:
        made.append(PlayedRun(description, **options))
        return made[0]

    outcome = run_load(
        TARGET,
        requests,
        body=Body(chat=False, model="m", ignore_eos=ignore_eos),
        max_concurrency=limit,
        keep_text=False,
        progress=Silent(),
        open_run=open_run,
    )
    return outcome, made[0]


def requests(count: int, every: float = 0.0) -> list[Request]:
    return [Request("w " * 4, 4, 3, due=index * every) for index in range(count)]


def test_outcomes_are_in_the_order_of_the_requests() -> None:
    done, _ = load(
        [Request("w", 1, length, due=0.1 * index) for index, length in enumerate((3, 1, 2))]
    )
    assert [outcome.asked for outcome in done.outcomes] == [(1, 3), (1, 1), (1, 2)]
    assert [outcome.output_tokens for outcome in done.outcomes] == [3, 1, 2]
    assert [outcome.sent for outcome in done.outcomes] == pytest.approx([0, 0.1, 0.2])
    assert done.outcomes[0].events.tolist() == pytest.approx([0.05, 0.06, 0.07])
    assert not done.partial
    assert done.duration == pytest.approx(0.26)


def test_places_are_given_in_order() -> None:
    done, _ = load(requests(5), limit=2)
    assert [outcome.sent for outcome in done.outcomes] == pytest.approx([0, 0, 0.07, 0.07, 0.14])


def test_fewer_tokens_than_asked_is_a_failure() -> None:
    short = lambda _index, _body: Answer((0.1,), 0.1, 4, 2)  # noqa: E731
    done, _ = load(requests(1), ignore_eos=True, serve=short)
    assert done.outcomes[0].failure == "short"
    done, _ = load(requests(1), serve=short)
    assert done.outcomes[0].success


def test_what_the_server_does_not_say_is_taken_from_what_was_asked_and_seen() -> None:
    done, _ = load(requests(1), serve=lambda *_: Answer((0.1, 0.2), 0.2))
    (outcome,) = done.outcomes
    assert (outcome.input_tokens, outcome.output_tokens, outcome.reported) == (4, 2, False)
    assert outcome.cached_tokens == 0


def test_bodies_ahead_are_bounded_and_prompts_are_built_once_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "BYTES_AHEAD", 1_000_000)
    built: list[int] = []

    def build(index: int) -> Request:
        built.append(index)
        return Request("w" * 10_000, 1, 1, due=0.01 * index)

    done, run = load(LazyRequests(range(1000), build))
    assert built == list(range(1000))
    assert len(done.outcomes) == 1000
    assert all(outcome.success for outcome in done.outcomes)
    assert run.most_ahead <= 1_000_000 + client.BATCH * 11_000


def test_failures_before_sending_make_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BYTES_AHEAD", 10_000)
    refused = lambda *_: Answer((), 0.0, failure="connect", detail="refused")  # noqa: E731
    done, _ = load([Request("w" * 1000, 1, 1) for _ in range(500)], serve=refused)
    assert {outcome.failure for outcome in done.outcomes} == {"connect"}
    assert len(done.outcomes) == 500


def kill_self(number: signal.Signals = signal.SIGINT) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_partial_load(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    done, _ = load(requests(100, every=0.1), moments={2.0: kill_self(number)})
    assert done.partial
    kinds = [outcome.failure for outcome in done.outcomes]
    assert kinds[:15] == [""] * 15
    assert "unsent" in kinds
    assert all(math.isnan(outcome.sent) for outcome in done.outcomes if outcome.failure == "unsent")
    assert signal.getsignal(number) == before


def test_open_requests_are_interrupted() -> None:
    forever = lambda *_: Answer((1.0, 1000.0), 1000.0)  # noqa: E731
    done, _ = load(requests(3), serve=forever, moments={5.0: kill_self()})
    assert [outcome.failure for outcome in done.outcomes] == ["interrupted"] * 3
    assert [len(outcome.events) for outcome in done.outcomes] == [1, 1, 1]


def test_a_second_signal_aborts() -> None:
    class Stuck(PlayedRun):
        def stop(self) -> None:
            """Does not end."""

    stuck = lambda description: Stuck(  # noqa: E731
        description, lambda *_: Answer((1e9,), 1e9), {1.0: kill_self(), 2.0: kill_self()}
    )
    with pytest.raises(KeyboardInterrupt):
        run_load(
            TARGET,
            requests(1),
            body=Body(chat=False, model="m"),
            max_concurrency=None,
            keep_text=False,
            progress=Silent(),
            open_run=stuck,
        )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_while_prompts_are_built_stops_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BYTES_AHEAD", 1000)

    def build(index: int) -> Request:
        if index > 200:
            raise PenstockError("no more words")
        return Request("w" * 100, 1, 1, due=float(index))

    with pytest.raises(PenstockError, match="no more words"):
        load(LazyRequests(range(1000), build))


def test_an_empty_load_is_a_load() -> None:
    done, _ = load([])
    assert list(done.outcomes) == []
    assert not done.partial
