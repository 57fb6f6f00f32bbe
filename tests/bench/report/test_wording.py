"""Numbers and names for people."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench.report.wording import (
    count,
    date_words,
    human,
    listing,
    plain,
    slug,
    time_unit,
    times,
    times_range,
)


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
