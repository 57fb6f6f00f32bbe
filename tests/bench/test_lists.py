"""Lists of numbers on the command line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import InvalidValueError
from penstock_lab.bench.lists import parse_counts, parse_pair, parse_rates


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", [8]),
        ("1,2,4", [1, 2, 4]),
        ("4,1,4", [4, 1]),
        ("1..64", [1, 2, 4, 8, 16, 32, 64]),
        ("3..20", [3, 6, 12, 20]),
        ("5..5", [5]),
        ("1..125", [1, 2, 4, 8, 16, 32, 64, 125]),
        ("1:9:2", [1, 3, 5, 7, 9]),
        ("1:4", [1, 2, 3, 4]),
        ("2:10:3", [2, 5, 8]),
        ("1, 10..40, 100:300:100", [1, 10, 20, 40, 100, 200, 300]),
    ],
)
def test_counts(text: str, values: list[int]) -> None:
    assert parse_counts("--concurrency", text) == values


def test_rates_step_without_drifting() -> None:
    rates = parse_rates("--request-rate", "0.1:0.7:0.1,2.5,inf")
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 2.5, math.inf])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "1,",
        "0",
        "-1",
        "a",
        "nan",
        "4..1",
        "9:1",
        "1:2:0",
        "1:2:3:4",
        "1..inf",
        "1:1e9",
        "1..2..3",
    ],
)
def test_what_is_no_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--request-rate"):
        parse_rates("--request-rate", text)


@pytest.mark.parametrize("text", ["1.5", "inf", "1:3:0.5"])
def test_counts_are_whole(text: str) -> None:
    with pytest.raises(InvalidValueError, match="whole numbers"):
        parse_counts("--concurrency", text)


def test_pairs() -> None:
    assert parse_pair("--pair", "200/1000") == (200, 1000)
    assert parse_pair("--pair", "5000,500") == (5000, 500)
    for text in ("200", "200/", "1/2/3", "a/b", "0/5", "-1/5"):
        with pytest.raises(InvalidValueError, match="INPUT/OUTPUT"):
            parse_pair("--pair", text)


@given(st.text(alphabet="0123456789.,:-einfa ", max_size=12))
def test_any_text_is_a_list_of_rates_or_refused(text: str) -> None:
    try:
        rates = parse_rates("--request-rate", text)
    except InvalidValueError:
        return
    assert rates
    assert all(rate > 0 for rate in rates)
    assert len(rates) == len(set(rates))
