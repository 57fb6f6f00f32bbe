"""Distributions of few points still have the quantiles of the whole sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench.report.distributions import NAMED, quantiles

samples = st.lists(st.floats(0, 1e6), min_size=2, max_size=400).map(sorted)


@given(samples)
def test_named_percentiles_are_exact(ordered: list[float]) -> None:
    curve = quantiles(ordered)
    named = {percent: value for value, percent, marked in curve if marked}
    for percent in NAMED:
        assert named[percent] == pytest.approx(np.percentile(ordered, percent), rel=1e-9, abs=1e-9)


@given(samples)
def test_curves_rise_from_the_smallest_to_the_largest(ordered: list[float]) -> None:
    curve = quantiles(ordered)
    values, percents = [point[0] for point in curve], [point[1] for point in curve]
    assert values == sorted(values)
    assert percents == sorted(percents)
    assert (percents[0], percents[-1]) == (0, 100)
    assert (values[0], values[-1]) == (ordered[0], ordered[-1])


@pytest.mark.parametrize("size", [401, 5_000, 100_000])
def test_every_quantile_of_a_large_sample_is_within_two_percent(size: int) -> None:
    ordered = sorted(np.random.default_rng(size).lognormal(3, 0.8, size).tolist())
    curve = quantiles(ordered)
    assert len(curve) < 350
    asked = np.linspace(5, 99.9, 500)
    drawn = np.interp(asked, [point[1] for point in curve], [point[0] for point in curve])
    assert np.abs(drawn / np.percentile(ordered, asked) - 1).max() < 0.02


def test_small_samples() -> None:
    assert quantiles([]) == []
    assert quantiles([7.0]) == [(7.0, 100.0, True)]
