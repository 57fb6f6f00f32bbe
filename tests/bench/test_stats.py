"""Statistics against numpy, against answers by hand, and against vLLM's rules written down another
way.
"""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench import stats
from penstock_lab.bench.body import Body
from penstock_lab.bench.client import run_load
from penstock_lab.bench.progress import Silent
from penstock_lab.bench.request import Load, Outcome, Request
from penstock_lab.bench.target import Address, Target
from tests.fakes.load import RecordedRun

GOLDEN = Path(__file__).parents[1] / "golden/bench"

values = st.lists(st.floats(-1e6, 1e6), max_size=200)
percents = st.one_of(st.floats(0, 100), st.sampled_from([0, 1, 25, 50, 75, 90, 95, 99, 99.9, 100]))


def outcome(
    sent: float,
    events: list[float],
    *,
    due: float | None = None,
    output: int | None = None,
    failure: str = "",
) -> Outcome:
    return Outcome(
        input_tokens=10,
        output_tokens=len(events) if output is None else output,
        asked=(10, 10),
        due=sent if due is None else due,
        sent=sent,
        connected=sent,
        ended=events[-1] if events else sent,
        events=array("d", events),
        reported=True,
        cached_tokens=0,
        finish="length",
        text="",
        failure=failure,
        detail="",
    )


def load_of(name: str) -> Load:
    """The load of a golden file, as the client makes it of the columns."""
    golden: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    requests = [
        Request("x", 8, request["must_produce"], request["due"]) for request in golden["requests"]
    ]
    return run_load(
        Target(Address("http://none"), "openai", "/v1/completions", "m", "m"),
        requests,
        body=Body(chat=False, model="m"),
        max_concurrency=golden["max_concurrency"],
        keep_text=True,
        progress=Silent(),
        open_run=lambda _: RecordedRun(golden["columns"]),
    )


@given(values, percents)
def test_percentile_is_numpys_to_the_last_bit(numbers: list[float], percent: float) -> None:
    expected = np.percentile(numbers, percent) if numbers else 0.0
    assert stats.percentile(sorted(numbers), percent) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4, 99, 100, 101, 10_000])
def test_percentiles_of_edge_sizes(size: int) -> None:
    numbers = np.random.default_rng(size).exponential(size=size)
    for percent in (0, 0.1, 25, 50, 99, 99.99, 100):
        assert stats.percentile(sorted(numbers.tolist()), percent) == np.percentile(
            numbers, percent
        )


@given(values)
def test_summary_is_numpys(numbers: list[float]) -> None:
    summary = stats.summarise(numbers, (50.0, 99.0))
    if not numbers:
        assert summary == stats.Summary(0.0, 0.0, 0.0, (0.0, 0.0))
        return
    scale = max(map(abs, numbers), default=1.0) + 1e-300
    assert summary.mean == pytest.approx(np.mean(numbers), rel=1e-12, abs=1e-12 * scale)
    assert summary.std == pytest.approx(np.std(numbers), rel=1e-9, abs=1e-9 * scale)
    assert summary.median == np.median(numbers)
    assert summary.percentiles == tuple(np.percentile(numbers, (50, 99)))


def test_a_million_values_agree_with_numpy() -> None:
    numbers = np.random.default_rng(0).gamma(2.0, 0.01, size=1_000_000)
    summary = stats.summarise(array("d", numbers.tolist()), (50.0, 99.0, 99.9))
    assert summary.percentiles == tuple(np.percentile(numbers, (50, 99, 99.9)))
    assert summary.std == pytest.approx(np.std(numbers), rel=1e-12)


def test_known_answers_of_four_streams() -> None:
    """tests/golden/bench/stream.json, worked out by hand from its script."""
    pooled = stats.latencies(load_of("stream.json").outcomes)
    assert pooled.ttft.tolist() == pytest.approx([0.030, 0.120, 0.025, 0.050])
    assert pooled.e2el.tolist() == pytest.approx([0.070, 0.170, 0.025, 0.100])
    # 40 ms for 4 tokens after the first, 50 ms for 2, none of a single token, 50 ms for 2.
    assert pooled.tpot.tolist() == pytest.approx([0.010, 0.025, 0.025])
    assert pooled.tpot_or_zero.tolist() == pytest.approx([0.010, 0.025, 0.0, 0.025])
    first, second, third, fourth = [10, 10, 0, 10, 10], [5, 5, 40], [0], [25, 25, 0]
    assert [gap * 1000 for gap in pooled.itl] == pytest.approx([*first, *second, *third, *fourth])
    assert pooled.queue.tolist() == pytest.approx([0.002, 0.002, 0.0, 0.0])


def test_the_role_of_a_chat_is_no_token() -> None:
    """tests/golden/bench/role.json: roles come 300, 30 and 30 ms before what follows them."""
    pooled = stats.latencies(load_of("role.json").outcomes)
    assert pooled.ttft.tolist() == pytest.approx([0.31, 0.04, 0.04, 0.01])
    assert pooled.tpot.tolist() == pytest.approx([0.04])


def test_output_tokens_without_usage_are_the_events_with_text() -> None:
    without_usage = load_of("stream.json").outcomes[3]
    assert not without_usage.reported
    assert (without_usage.input_tokens, without_usage.output_tokens) == (8, 3)


def test_known_answers_of_a_queue() -> None:
    load = load_of("queue.json")
    pooled = stats.latencies(load.outcomes)
    assert pooled.queue.tolist() == pytest.approx([0, 0, 0.1, 0.2, 0.25, 0])
    assert pooled.ttft.tolist() == pytest.approx([0.1, 0.2, 0.1, 0.1, 0.1, 0.1])
    summary = stats.summarise(pooled.e2el, (50.0, 99.0))
    # 150 ms five times and 350 ms once: the 99th percentile is 95 % of the way from the fifth to
    # the sixth.
    assert summary.mean == pytest.approx((5 * 0.15 + 0.35) / 6)
    assert summary.median == pytest.approx(0.15)
    assert summary.percentiles == pytest.approx((0.15, 0.15 + 0.95 * 0.2))
    assert summary.std == pytest.approx(0.2 * math.sqrt(5) / 6)
    assert load.duration == 0.75


def test_only_successful_requests_enter() -> None:
    load = load_of("failures.json")
    pooled = stats.latencies(load.outcomes)
    assert [len(column) for column in (pooled.ttft, pooled.e2el, pooled.tpot, pooled.itl)] == [
        1,
        1,
        1,
        2,
    ]
    assert pooled.ttft.tolist() == pytest.approx([0.01])
    assert stats.peaks(load.outcomes) == stats.Peaks(3.0, 1)


def test_a_stall_delays_nobody_else() -> None:
    load = load_of("stalled.json")
    assert max(outcome.sent - outcome.due for outcome in load.outcomes) == 0.0
    assert stats.latencies(load.outcomes).ttft.tolist() == pytest.approx(
        [10, 0.02, 0.02, 0.02, 0.02, 0.01]
    )


def test_goodput_counts_requests_within_all_limits() -> None:
    pooled = stats.latencies(load_of("stream.json").outcomes)
    assert stats.good_requests(pooled, {"ttft": 0.060}) == 3
    assert stats.good_requests(pooled, {"tpot": 0.011}) == 2, (
        "a single token has no TPOT to be too long"
    )
    assert stats.good_requests(pooled, {"ttft": 0.060, "tpot": 0.011}) == 2
    assert stats.good_requests(pooled, {"e2el": 1.0}) == 4


def test_a_limit_itself_is_good() -> None:
    pooled = stats.latencies([outcome(0.0, [0.5, 1.0])])
    assert stats.good_requests(pooled, {"ttft": 0.5, "e2el": 1.0}) == 1


def test_peaks_of_an_empty_load() -> None:
    assert stats.peaks([]) == stats.Peaks(0.0, 0)
    assert stats.peaks([outcome(0.0, [], failure="connect")]) == stats.Peaks(0.0, 0)


def test_peaks_by_hand() -> None:
    outcomes = [
        outcome(10.0, [10.5, 11.2, 11.9]),
        outcome(11.5, [11.6]),
        outcome(13.0, [13.1, 13.2]),
    ]
    # Seconds from 10: one event, three events (11.2, 11.9, 11.6), none, two. The first two meet in
    # second 1.
    assert stats.peaks(outcomes) == stats.Peaks(3.0, 2)


spans = st.lists(
    st.tuples(st.floats(0, 50), st.lists(st.floats(0, 3), min_size=1, max_size=20)),
    min_size=1,
    max_size=30,
)


@given(spans)
def test_peaks_are_those_of_filling_every_second(drawn: list[tuple[float, list[float]]]) -> None:
    outcomes = [
        outcome(sent, np.add.accumulate([sent, *steps]).tolist()[1:]) for sent, steps in drawn
    ]
    origin = min(o.sent for o in outcomes)
    seconds = range(int(max(o.events[-1] for o in outcomes) - origin) + 2)
    tokens = [
        sum(int(event - origin) == second for o in outcomes for event in o.events)
        for second in seconds
    ]
    present = [
        sum(
            int(o.sent - origin) <= second <= int(o.sent + stats.e2el(o) - origin) for o in outcomes
        )
        for second in seconds
    ]
    assert stats.peaks(outcomes) == stats.Peaks(max(tokens), max(present))
