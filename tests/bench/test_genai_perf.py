"""GenAI-Perf's metrics against numpy, and windows against a count by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench import block, genai_perf
from penstock_lab.bench.request import Outcome
from penstock_lab.bench.result import Wanted
from tests.bench.test_result import made
from tests.bench.test_result import outcome as whole
from tests.bench.test_stats import outcome

gaps = st.lists(st.floats(1e-6, 5), min_size=1, max_size=30)
requests = st.lists(st.tuples(st.floats(0, 100), gaps), min_size=1, max_size=30)


def request(sent: float, between: list[float]) -> Outcome:
    return outcome(sent, list(sent + np.cumsum(between)))


@given(requests)
def test_columns_are_those_of_numpy(drawn: list[tuple[float, list[float]]]) -> None:
    outcomes = [request(*each) for each in drawn]
    found = genai_perf.table(outcomes)
    columns: dict[str, list[float]] = {name: [] for name in genai_perf.METRICS}
    for each in outcomes:
        events = np.array(each.events)
        columns["time_to_first_token_ms"].append(1000 * (events[0] - each.sent))
        columns["request_latency_ms"].append(1000 * (events[-1] - each.sent))
        columns["output_sequence_length"].append(len(events))
        columns["input_sequence_length"].append(10)
        if len(events) > 1:
            mean = np.diff(events).mean()
            columns["time_to_second_token_ms"].append(1000 * (events[1] - events[0]))
            columns["inter_token_latency_ms"].append(1000 * mean)
            columns["output_token_throughput_per_user"].append(1 / mean)
    assert set(found) == {name for name, values in columns.items() if values}
    for name, row in found.items():
        values = np.array(columns[name])
        expected = [values.mean(), values.min(), values.max(), *np.percentile(values, [99, 90, 75])]
        assert list(row.values()) == pytest.approx(expected, rel=1e-6)


@given(requests, st.floats(0.05, 200))
def test_windows_count_every_request_and_token_once(
    drawn: list[tuple[float, list[float]]], width: float
) -> None:
    outcomes = [request(*each) for each in drawn]
    duration = max(each.events[-1] for each in outcomes)
    found = genai_perf.windows(outcomes, width, duration)
    assert found[0]["start_s"] == 0
    assert found[-1]["end_s"] == duration
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(found))
    assert sum(each["completed"] for each in found) == len(outcomes)
    spans = [each["end_s"] - each["start_s"] for each in found]
    tokens = sum(w["output_throughput"] * s for w, s in zip(found, spans, strict=True))
    assert tokens == pytest.approx(sum(each.output_tokens for each in outcomes))
    ends = np.histogram(
        [each.events[-1] for each in outcomes],
        [*(each["start_s"] for each in found), np.inf],
    )[0]
    assert [each["completed"] for each in found] == ends.tolist()


def test_a_window_by_hand() -> None:
    early, late = request(0, [1, 1, 1]), request(1, [1, 4, 0.5])
    failed = outcome(0, [1.0], failure="short")
    first, second = genai_perf.windows([early, late, failed], 5.0, 6.5)
    assert (first["completed"], first["output_throughput"]) == (1, 4 / 5)
    assert (second["start_s"], second["end_s"]) == (5.0, 6.5)
    assert (second["completed"], second["request_throughput"]) == (1, 1 / 1.5)
    assert second["output_throughput"] == pytest.approx(2 / 1.5)
    assert second["metrics"]["time_to_second_token_ms"]["avg"] == 4000


def test_a_width_of_a_moment_does_not_fill_the_memory() -> None:
    found = genai_perf.windows([request(0, [1e5])], 0.001, 1e5)
    assert len(found) <= genai_perf.MOST_WINDOWS
    assert sum(each["completed"] for each in found) == 1


def test_nothing_ended_and_nothing_is_made_up() -> None:
    assert genai_perf.table([outcome(0, [], failure="connect")]) == {}
    (only,) = genai_perf.windows([], 30.0, 0.0)
    assert (only["completed"], only["output_throughput"], only["metrics"]) == (0, 0, {})
    one = genai_perf.table([request(0, [1.0])])
    assert "time_to_second_token_ms" not in one


def test_the_block_has_the_table_and_the_windows() -> None:
    found = made(whole(), whole(due=1.25), wanted=Wanted(window=30.0))
    printed = block.render(found, ()).splitlines()
    at = printed.index(f"{'Metrics of GenAI-Perf':-^50}")
    assert printed[at + 1].split() == ["avg", "min", "max", "p99", "p90", "p75"]
    row = next(line for line in printed if line.startswith("Time to first token"))
    assert [float(word) for word in row[26:].split()] == [250.0] * 6
    windows = printed[printed.index(f"{'Windows':-^50}") :]
    assert windows[2].split()[:2] == ["0-2", "2"]
