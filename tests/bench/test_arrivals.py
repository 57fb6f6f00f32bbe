"""Arrival processes against known moments, and against their definition in `vllm bench serve`."""

import math
import statistics
from itertools import pairwise

import numpy
import pytest

from penstock.core import InvalidValueError
from penstock_lab.bench.arrivals import Ramp, at_times, due_times
from penstock_lab.bench.request import Request

COUNT = 20_000


def gaps(times: list[float]) -> list[float]:
    return [times[0], *(later - earlier for earlier, later in pairwise(times))]


def test_infinite_rate_is_all_at_once() -> None:
    assert due_times(5, math.inf) == [0.0] * 5


@pytest.mark.parametrize("burstiness", [0.1, 1.0, 4.0, math.inf])
@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_the_last_is_due_at_count_over_rate(burstiness: float, rate: float) -> None:
    for seed in range(3):
        times = due_times(200, rate, burstiness, seed)
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] == pytest.approx(200 / rate, rel=1e-12)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_moments_of_a_gamma_distribution(burstiness: float) -> None:
    drawn = gaps(due_times(COUNT, 8.0, burstiness, seed=1))
    mean, deviation = statistics.fmean(drawn), float(numpy.std(drawn))
    spread = deviation / mean
    skew = statistics.fmean(((gap - mean) / deviation) ** 3 for gap in drawn)
    assert mean == pytest.approx(1 / 8, rel=1e-9)
    assert spread == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)
    assert skew == pytest.approx(2 / math.sqrt(burstiness), rel=0.2)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_quantiles_that_numpy_draws(burstiness: float) -> None:
    ours = gaps(due_times(COUNT, 1.0, burstiness, seed=2))
    theirs = numpy.random.default_rng(0).gamma(burstiness, 1 / burstiness, COUNT)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        # Differences of a share between two samples of COUNT have a standard deviation of about
        # 0.5%.
        below = numpy.mean(numpy.asarray(ours) <= numpy.quantile(theirs, share))
        assert below == pytest.approx(share, abs=0.02)


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    times = due_times(COUNT, 10.0, 1.0, seed=3)
    counts = numpy.histogram(times, bins=int(times[-1]))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.15)


def test_infinite_burstiness_is_even() -> None:
    assert gaps(due_times(10, 4.0, math.inf)) == pytest.approx([0.25] * 10)


def test_a_seed_decides() -> None:
    assert due_times(50, 2.0, 1.0, 7) == due_times(50, 2.0, 1.0, 7)
    assert due_times(50, 2.0, 1.0, 7) != due_times(50, 2.0, 1.0, 8)


def test_linear_ramp() -> None:
    times = due_times(5, math.inf, math.inf, ramp=Ramp("linear", 1, 5))
    assert gaps(times) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_exponential_ramp() -> None:
    times = due_times(5, math.inf, math.inf, ramp=Ramp("exponential", 1, 16))
    assert gaps(times) == pytest.approx([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16])


def test_a_ramp_draws_around_its_rates_and_is_not_stretched() -> None:
    ends = [due_times(1000, math.inf, 1.0, seed, Ramp("linear", 5, 5))[-1] for seed in range(40)]
    assert len(set(ends)) == 40
    assert statistics.fmean(ends) == pytest.approx(1000 / 5, rel=0.03)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: due_times(1, 0.0), "--request-rate"),
        (lambda: due_times(1, math.nan), "--request-rate"),
        (lambda: due_times(1, 1.0, 0.0), "--burstiness"),
        (lambda: Ramp("linear", 0, 4), "--ramp-up-start-rps"),
        (lambda: Ramp("linear", 5, 4), "--ramp-up-end-rps"),
        (lambda: Ramp("steep", 1, 4), "--ramp-up-strategy"),
    ],
)
def test_values_out_of_range_are_named(build, named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        build()


def test_requests_get_their_times_one_at_a_time() -> None:
    timed = at_times([Request("a", 1, 2), Request("b", 3, 4)], [0.5, 1.5])
    assert [(r.prompt, r.due) for r in timed] == [("a", 0.5), ("b", 1.5)]
    assert timed[-1].due == 1.5
    assert [r.prompt for r in timed[1:]] == ["b"]
    with pytest.raises(ValueError, match="2 requests and 1 due times"):
        at_times(timed, [0.0])
