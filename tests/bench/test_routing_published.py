"""benchmarks/routing_published.py: its load, the engine that it derives, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from types import ModuleType

import pytest

from penstock_lab.bench.routing import Fleet, Workload, policy, replay
from penstock_lab.bench.routing.replay import unevenness
from penstock_lab.bench.traces import Arrival
from tests.bench.scripts import imported

TOGETHER, TOKENS = 10, 200


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with imported("routing_published") as (module,):
        yield module


def test_lengths_are_those_of_the_published_totals(script: ModuleType) -> None:
    flags = dict(zip(script.LOAD[::2], script.LOAD[1::2], strict=True))
    ratio = float(flags["--random-range-ratio"])
    prefix = int(flags["--random-prefix-len"])
    for flag, total, fixed, longest in (
        ("--random-input-len", "total_input_tokens", prefix, 4000),
        ("--random-output-len", "total_output_tokens", 0, 3000),
    ):
        mean = int(flags[flag])
        low, high = mean * (1 - ratio), mean * (1 + ratio)
        assert (low, high) == pytest.approx((0.2 * longest, longest), abs=0.1)
        # The mean of 300 uniform lengths has this standard error.
        error = (high - low) / 12**0.5 / script.REQUESTS**0.5
        published = script.PUBLISHED["plain"][total] / script.REQUESTS
        assert published == pytest.approx(fixed + mean, abs=2 * error)


@pytest.mark.parametrize("compression", [1.0, 10.0])
def test_ten_sequences_decode_at_the_published_median(
    script: ModuleType, compression: float
) -> None:
    # Its only step is in flight while the others arrive, so one step has all their prompts.
    first = Arrival(0.0, 100, 1)
    burst = tuple(Arrival(1e-4, 100, TOKENS) for _ in range(TOGETHER))
    fleet = Fleet(engines=(script.engine(compression),))
    found = replay(Workload("burst", 16, (first, *burst)), policy("round-robin"), fleet)
    assert found.tpot_mean * compression == pytest.approx(103.10)
    assert found.failed == found.preemptions == 0


def test_a_prompt_costs_the_others_what_the_mean_itl_exceeds_the_median_by(
    script: ModuleType,
) -> None:
    work = script.prompt_ms(
        {
            "mean_itl_ms": 13.0,
            "median_itl_ms": 10.0,
            "total_input_tokens": 60_000,
            "total_output_tokens": 90_300,
        }
    )
    # 90,000 gaps are 3 ms longer; each of 60,000 prompt tokens is in a gap of nine sequences.
    assert work == pytest.approx(90_000 * 3 / (60_000 * 9))


def test_times_and_rates_are_restored(script: ModuleType) -> None:
    measured = {
        "duration": 2.0,
        "mean_ttft_ms": 30.0,
        "output_throughput": 500.0,
        "max_output_tokens_per_s": 600.0,
        "completed": 300,
        "backend": "openai",
        "errors": [],
    }
    assert script.in_modelled_time(measured, 10.0) == {
        "duration": 20.0,
        "mean_ttft_ms": 300.0,
        "output_throughput": 50.0,
        "max_output_tokens_per_s": 60.0,
        "completed": 300,
    }


def test_unevenness_is_the_coefficient_of_variation() -> None:
    assert unevenness([]) == unevenness([[0.0, 0.0]]) == 0.0
    assert unevenness([[0.4, 0.4, 0.4]]) == 0.0
    assert unevenness([[0.9, 0.0, 0.0], [0.0, 0.0, 0.0]]) == pytest.approx(2**0.5)
    samples = [[0.1, 0.2, 0.6], [0.5, 0.4, 0.3]]
    each = [statistics.pstdev(sample) / statistics.fmean(sample) for sample in samples]
    assert unevenness(samples) == pytest.approx(statistics.fmean(each))


def test_tables_have_the_published_figures_and_the_range_of_ours(script: ModuleType) -> None:
    runs = []
    for name, ttfts in (
        ("round robin", (9000.0, 11000.0)),
        ("fewest requests", (7500.0, 7500.0)),
        ("default", (7000.0, 8000.0)),
    ):
        for ttft in ttfts:
            keys = dict.fromkeys((key for key, _ in script.ROWS.values()), 1.0)
            runs.append({**keys, "policy": name, "mean_ttft_ms": ttft})
    rows = [line.strip("| ").split(" | ") for line in script.table(runs)]
    assert ["TTFT mean, ms", "10,909", "7,336", "10,000 (9,000 to 11,000)"] in [
        row[:4] for row in rows
    ]
    assert ["unevenness of KV use", "", "", "1.000 (1.000 to 1.000)"] in [row[:4] for row in rows]
    mean = next(line for line in script.gains(runs) if line.startswith("| mean TTFT"))
    assert mean == "| mean TTFT | -32.8% | -25.0% | +0.0% |"
