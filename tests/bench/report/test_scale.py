"""Axes: ticks of 1, 2 and 5, everything inside, order kept; and numbers for people."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.bench.report.charts import Axis, Extent
from penstock.bench.report.naming import date_words, slug, time_unit
from penstock.bench.report.numbers import count, human, listing, plain, tick, times, times_range
from penstock.bench.report.scale import fit

values = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20)


@given(
    values,
    st.sampled_from([Extent.AUTO, Extent.LINEAR, Extent.LOG]),
    st.booleans(),
    st.integers(2, 9),
)
def test_scales_hold_all_values_and_keep_their_order(
    found: list[float], extent: Extent, zero: bool, ticks: int
) -> None:
    scale = fit(Axis("a", extent=extent, zero=zero), found, ticks)
    assert scale.low < scale.high
    places = [
        scale.place(value) for value in sorted(value for value in found if not math.isnan(value))
    ]
    assert all(0 <= place <= 1 for place in places)
    assert places == sorted(places)
    positions = [value for value, _ in scale.ticks]
    assert positions == sorted(positions)
    assert all(0 <= scale.place(value) <= 1 for value in positions)


@given(st.floats(1e-6, 1e9), st.floats(1.001, 1e6))
def test_ticks_are_one_two_or_five_times_a_power_of_ten_apart(low: float, factor: float) -> None:
    scale = fit(Axis("a", extent=Extent.LINEAR), [low, low * factor], 5)
    (first, _), (second, _) = scale.ticks[:2]
    mantissa = f"{second - first:.6e}"[0]
    assert mantissa in "125"
    assert 2 <= len(scale.ticks) <= 12
    assert len({label for _, label in scale.ticks}) == len(scale.ticks), scale.ticks


def test_a_large_range_becomes_logarithmic_unless_something_is_not_positive() -> None:
    assert fit(Axis("a"), [1, 1000]).log
    assert not fit(Axis("a"), [1, 20]).log
    assert not fit(Axis("a"), [0, 1000]).log
    assert not fit(Axis("a"), [-1, 1000]).log
    assert [label for _, label in fit(Axis("a"), [1, 100], 6).ticks] == [
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
    ]


def test_log_places_are_equal_steps_for_equal_factors() -> None:
    scale = fit(Axis("a", extent=Extent.LOG), [1, 1000])
    assert scale.place(10) == pytest.approx(1 / 3)
    assert scale.place(100) == pytest.approx(2 / 3)
    assert scale.place(0) == 0


def test_ticks_can_be_the_values_that_were_measured() -> None:
    scale = fit(Axis("a", extent=Extent.LOG, ticks=(1, 3, 12)), [1, 3, 12])
    assert scale.ticks == ((1, "1"), (3, "3"), (12, "12"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (0.0, "0"),
        (0.01234, "0.0123"),
        (0.99962, "1.00"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (999.6, "1,000"),
        (1234567.8, "1,234,568"),
        (-12.34, "-12.3"),
        (2e16, "2.00e+16"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert human(value) == text


def test_ratios() -> None:
    assert [times(ratio) for ratio in (1.4159, 0.5, 0.0784, 128.2, None)] == [
        "1.42×",
        "0.50×",
        "0.078×",
        "128×",
        "–",
    ]
    assert times_range(1.001, 1.002) == "1.00"
    assert times_range(1.3, 1.46) == "1.30–1.46"


def test_ticks_are_told_apart() -> None:
    assert [tick(value, 0.5) for value in (0, 0.5, 1)] == ["0.0", "0.5", "1.0"]
    assert [tick(value, 5000) for value in (5000, 10000, 15000)] == ["5,000", "10k", "15k"]
    assert tick(2_500_000, 500_000) == "2.5M"


def test_words() -> None:
    assert plain(8.0) == "8"
    assert plain(0.25) == "0.25"
    assert count(1, "run") == "1 run"
    assert count(1200, "run") == "1,200 runs"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert listing(list("abcdef"), 3) == "a, b and 4 more"
    assert date_words("20261120-101500") == "2026-11-20 10:15"
    assert date_words("yesterday") == "yesterday"
    assert time_unit(4999) == (1.0, "ms")
    assert time_unit(5_000) == (0.001, "s")


@given(st.lists(st.text(max_size=200), max_size=3))
def test_file_names_are_harmless(parts: list[str]) -> None:
    name = slug(*parts)
    assert name.strip("-.")
    assert len(name) <= 80
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert ".." not in name or "/" not in name


def test_a_log_axis_can_leave_out_what_is_too_small() -> None:
    scale = fit(Axis("a", extent=Extent.LOG, low=1.0), [0, 1e-9, 2, 500])
    assert (scale.low, scale.high) == (2, 500)
    assert scale.place(1e-9) == 0
