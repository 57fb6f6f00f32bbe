"""Medians, spreads and ratios against values computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import PenstockError
from penstock_lab.bench.compare.summary import Workload, summarise
from penstock_lab.bench.compare.table import lines, number
from tests.bench.results import load_results


def result(
    server: str, throughput: object, *, workload: str = "W1", repeat: int = 1, **own: Any
) -> dict[str, Any]:
    """A run of ten requests; `own` are keys of "penstock" or, with `top`, of the result."""
    top = own.pop("top", {})
    return {
        "date": f"2026-01-01-{repeat:06d}",
        "duration": 2.0,
        "completed": 10,
        "failed": 0,
        "total_input_tokens": 640,
        "output_throughput": throughput,
        **top,
        "penstock": {
            "server": server,
            "workload": workload,
            "repeat": repeat,
            "partial": False,
            **own,
        },
    }


W1 = Workload("W1")


def test_medians_spreads_and_ratios() -> None:
    runs = [result("a", value, repeat=n) for n, value in enumerate((100, 300, 200))]
    runs += [result("b", value, repeat=n) for n, value in enumerate((90, 110))]
    found = summarise(runs)
    a, b = found.row(W1, "output_throughput")
    assert a
    assert b
    assert (a.median, a.low, a.high, a.n, a.ratio) == (200, 100, 300, 3, 1)
    assert (b.median, b.low, b.high, b.n, b.ratio) == (100, 90, 110, 2, 0.5)
    (other, _) = summarise(runs, baseline="b").row(W1, "output_throughput")
    assert other
    assert other.ratio == 2.0
    (inputs, _) = found.row(W1, "input_throughput")
    assert inputs
    assert inputs.median == 320


def test_partial_runs_are_counted_and_do_not_enter() -> None:
    runs = [
        result("a", 100),
        result(
            "a", 1, partial=True, failures={"interrupted": 4}, top={"completed": 6, "failed": 4}
        ),
    ]
    found = summarise(runs)
    (cell,) = found.row(W1, "output_throughput")
    assert cell
    assert (cell.median, cell.n) == (100, 1)
    counts = found.counts[W1, "a"]
    assert (counts.runs, counts.partial, counts.completed, counts.failed) == (2, 1, 16, 4)
    assert counts.failures == {"interrupted": 4}


def test_failures_early_stops_and_prompt_mismatches_add_up() -> None:
    runs = [
        result(
            "a",
            1,
            failures={"short": 2, "timeout": 1},
            usage={"prompt_mismatch": 3},
            top={"failed": 3},
        ),
        result("a", 1, failures={"short": 5}, usage={"prompt_mismatch": 1}, top={"failed": 5}),
    ]
    counts = summarise(runs).counts[W1, "a"]
    assert counts.failures == {"short": 7, "timeout": 1}
    assert counts.failed == 8
    assert counts.prompt_mismatch == 4


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, "n/a", True])
def test_what_is_no_number_is_left_out(missing: object) -> None:
    found = summarise([result("a", missing), result("b", 5.0)])
    a, b = found.row(W1, "output_throughput")
    assert a is None
    assert b
    assert b.ratio is None


def test_zero_latencies_are_absent_and_zero_throughput_is_not() -> None:
    """vLLM writes 0 for the TPOT of a run in which no request has two tokens."""
    found = summarise([result("a", 0.0, top={"median_tpot_ms": 0.0, "median_ttft_ms": 3.0})])
    assert [statistic.key for statistic in found.statistics] == [
        "output_throughput",
        "input_throughput",
        "median_ttft_ms",
    ]
    (cell,) = found.row(W1, "output_throughput")
    assert cell
    assert cell.ratio is None


def test_percentiles_are_those_of_the_files_and_the_median_comes_once() -> None:
    top = {
        f"{name}_ttft_ms": 1.0 for name in ("mean", "std", "median", "p99.9", "p50", "p90", "p99")
    }
    found = summarise([result("a", 1, top=top)])
    labels = [statistic.label for statistic in found.statistics if "ttft" in statistic.key]
    assert labels == ["TTFT median ms", "TTFT P90 ms", "TTFT P99 ms", "TTFT P99.9 ms"]


def test_points_of_a_curve_are_workloads_of_their_own() -> None:
    runs = [result("a", scale, axis="time_scale", point=scale) for scale in (0.4, 1.6)]
    found = summarise(runs)
    assert found.workloads == [Workload("W1", "time_scale", 0.4), Workload("W1", "time_scale", 1.6)]
    assert found.cells[found.workloads[1], "a", "output_throughput"].median == 1.6


def test_memory_is_compared_and_foreign_cpu_is_not() -> None:
    runs = [
        result(name, 1, process={"pss_mb": pss, "foreign_share": 0.02, "server_cpu_s": 1.0})
        for name, pss in (("a", 100), ("b", 250))
    ]
    found = summarise(runs)
    assert found.cells[W1, "b", "pss_mb"].ratio == 2.5
    assert found.cells[W1, "b", "foreign_share"].ratio is None


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(PenstockError, match=r"'c'.*a, b"):
        summarise([result("a", 1), result("b", 1)], baseline="c")
    assert summarise([]).servers == []


def test_order_comes_from_the_comparison_or_the_files() -> None:
    assert summarise([result("a", 1), result("b", 1)], order=["b", "gone", "a"]).servers == [
        "b",
        "a",
    ]


@given(
    st.lists(st.floats(0.001, 1e6), min_size=1, max_size=9),
    st.lists(st.floats(0.001, 1e6), min_size=1),
)
def test_cells_agree_with_numpy(mine: list[float], theirs: list[float]) -> None:
    runs = [*(result("a", value) for value in mine), *(result("b", value) for value in theirs)]
    a, b = summarise(runs).row(W1, "output_throughput")
    assert a
    assert b
    assert (a.low, a.high) == (np.min(mine), np.max(mine))
    assert a.median == pytest.approx(np.median(mine))
    assert b.ratio == pytest.approx(np.median(theirs) / np.median(mine))


def test_files_of_vllm_are_read(tmp_path: Path) -> None:
    """Without our key the server is the label, or the model."""
    theirs = {
        "date": "1",
        "duration": 1.0,
        "completed": 1,
        "failed": 0,
        "model_id": "m",
        "output_throughput": 7.0,
    }
    (tmp_path / "a.json").write_text(json.dumps(theirs))
    found = summarise(load_results(tmp_path))
    assert found.servers == ["m"]
    assert found.cells[Workload("load"), "m", "output_throughput"].median == 7.0


def test_the_table_shows_median_spread_ratio_and_failures() -> None:
    runs = [result("a", value, repeat=n) for n, value in enumerate((100, 300, 200))]
    runs += [result("b", 90.0, failures={"short": 3}, top={"failed": 3})]
    facts = {
        "servers": {"a": {"version": "1.0", "note": "four bits", "ready_s": 0.5}},
        "troubles": ["b left"],
    }
    text = "\n".join(lines(summarise(runs), facts))
    assert "a: 1.0; four bits; ready after 0.50 s" in text
    assert "200.0 (100.0..300.0)" in text
    assert "90.0  x0.45" in text
    assert "3 of 13 (short 3)" in text
    assert "  b left" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.001, "0.00"), (9.994, "9.99"), (45.67, "45.7"), (12345.6, "12,346")]
)
def test_numbers_have_the_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text
