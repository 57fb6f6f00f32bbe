from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.top import words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (2.5, "2.5"),
        (9.99, "10"),
        (850, "850"),
        (999.6, "1.0k"),
        (12_345, "12k"),
        (123_456, "123k"),
        (999_999, "1.0M"),
        (4e12, "4000G"),
    ],
)
def test_counts(value: float | None, shown: str) -> None:
    assert words.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0004, "0.4ms"), (0.0123, "12ms"), (0.9999, "1.00s"), (12.34, "12.3s"), (2560, "2560s")],
)
def test_latencies(value: float, shown: str) -> None:
    assert words.seconds(value) == shown


@given(st.floats(0, 9.9e11), st.floats(0, 9999))
def test_numbers_fit_their_columns(value: float, time: float) -> None:
    assert len(words.count(value)) <= 4
    assert len(words.seconds(time)) <= 5


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3.9, "3s"), (125, "2m05s"), (7260, "2h01m"), (90_000, "1d01h")],
)
def test_durations(value: float, shown: str) -> None:
    assert words.duration(value) == shown


def test_sizes() -> None:
    assert [words.size(n) for n in (0, 512, 1536, 4 << 30, 200 << 30)] == [
        "0B",
        "512B",
        "1.5K",
        "4.0G",
        "200G",
    ]


@pytest.mark.parametrize(
    "hostile",
    ["\x1b[2J", "\x9b2J", "a\nb", "a\rb", "\u202egnp.exe", "a\u0301", "\u05d0", "\ud800", "\x00"],
)
def test_nothing_that_a_terminal_interprets_is_shown(hostile: str) -> None:
    shown = words.printable(hostile)
    assert shown.isprintable()
    assert "?" in shown


@given(st.text(), st.integers(0, 30))
def test_a_padded_text_takes_exactly_its_columns(text: str, most: int) -> None:
    shown = words.padded(words.printable(text), most)
    assert words.width(shown) == most
    assert shown.isprintable()


def test_wide_characters_take_two_columns() -> None:
    assert words.padded("模型模型", 5) == "模型~"
    assert words.padded("模型", 5, right=True) == " 模型"
