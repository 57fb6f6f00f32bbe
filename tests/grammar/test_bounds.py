"""Bounds of numbers beside exact arithmetic: no text outside them is allowed, no short one inside
them is refused.
"""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from tests.grammar.vocabulary import write_tokenizer

if TYPE_CHECKING:
    from penstock._native import Grammar, Tokenizer

Schema = dict[str, object]
Bounds = dict[str, object]

ENDS = [0, 0.5, 0.05, 0.25, 1, 1.5, 2, 3, 9, 9.99, 10, 12.34, 99, 100, 100.5, 101, 0.001, 1e-7]
BOUNDS = [*ENDS, *(-end for end in ENDS)]
TEXTS = [
    *["0", "0.0", "0.00", "-0", "-0.0", "0.5", "0.50", "0.49", "0.51", "0.05", "0.050", "0.04"],
    *["0.25", "0.2", "0.3", "0.001", "0.0001", "0.9", "1", "1.0", "1.4", "1.5", "1.50", "1.6"],
    *["2", "2.0", "2.01", "3", "8.99", "9", "9.0", "9.98", "9.99", "9.999", "10", "10.0", "10.5"],
    *["12", "12.3", "12.34", "12.340", "12.35", "13", "98", "99", "99.9", "100", "100.0", "100.4"],
    *["100.5", "100.50", "100.6", "101", "101.0", "102", "1000", "123456"],
]
VALUES = sorted({*TEXTS, *(f"-{text}" for text in TEXTS if text[0] != "-")})
NAMES = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    native = pytest.importorskip("penstock._native", reason="run `make install`")
    directory = tmp_path_factory.mktemp("bytes")
    write_tokenizer(directory)
    made: Tokenizer = native.Tokenizer(str(directory))
    return made


def takes(grammar: Grammar, text: str) -> bool:
    taken, whole, _ = grammar.follow(list(text.encode()))
    return taken == len(text) and whole


def compiled(tokenizer: Tokenizer, schema: Schema) -> Grammar | None:
    try:
        return tokenizer.grammar("json", json.dumps(schema))
    except ValueError:
        return None


def exact(number: object) -> Decimal:
    return Decimal(repr(number))


def inside(text: str, bounds: Bounds, integer: bool) -> bool:
    value = Decimal(text)
    checks = {
        "minimum": lambda end: value >= end,
        "exclusiveMinimum": lambda end: value > end,
        "maximum": lambda end: value <= end,
        "exclusiveMaximum": lambda end: value < end,
    }
    whole = not integer or value == value.to_integral_value()
    return whole and all(checks[name](exact(end)) for name, end in bounds.items())


def plain(text: str, integer: bool) -> bool:
    """Whether a text is the shortest one of its value, which a grammar has to allow."""
    value = Decimal(text).normalize()
    short = format(value, "f")
    return text == short and (not integer or "." not in text) and text != "-0"


def wrong(tokenizer: Tokenizer, schema: Schema, bounds: Bounds, integer: bool) -> list[str]:
    """What a grammar allows or refuses wrongly."""
    right = {text: inside(text, bounds, integer) for text in VALUES}
    grammar = compiled(tokenizer, schema)
    if grammar is None:
        refused = [text for text in VALUES if right[text] and plain(text, integer)]
        return [f"{schema} is refused, {text} is inside" for text in refused[:1]]
    found = []
    for text in VALUES:
        allowed = takes(grammar, text)
        if allowed and not right[text]:
            found.append(f"{schema} allows {text}")
        if right[text] and not allowed and plain(text, integer):
            found.append(f"{schema} refuses {text}")
    return found


def pairs(seed: int, number: int) -> list[Bounds]:
    """Random bounds: one or two of them, with both ends often close."""
    draw = random.Random(seed)
    drawn: list[Bounds] = []
    while len(drawn) < number:
        low, high = sorted(draw.choices(BOUNDS, k=2))
        if draw.random() < 0.3:
            high = low + draw.choice([0, 0.25, 0.5, 1])
        bounds: Bounds = {draw.choice(NAMES[:2]): low, draw.choice(NAMES[2:]): high}
        if draw.random() < 0.2:
            del bounds[draw.choice(list(bounds))]
        drawn.append(bounds)
    return drawn


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_bounds_are_those_of_exact_arithmetic(tokenizer: Tokenizer, kind: str) -> None:
    found = []
    for bounds in pairs(1, 250):
        found += wrong(tokenizer, {"type": kind, **bounds}, bounds, kind == "integer")
    assert found == []


@pytest.mark.parametrize("kind", ["number", "integer"])
def test_bounds_that_are_merged(tokenizer: Tokenizer, kind: str) -> None:
    found = []
    for bounds in pairs(2, 120):
        parts: list[Schema] = [{name: end} for name, end in bounds.items()]
        schema: Schema = {"type": kind, "allOf": parts}
        found += wrong(tokenizer, schema, bounds, kind == "integer")
    assert found == []


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10, 0.5, 0.25, 0.1, 0.01, 2.5, 1.5])
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_multiples_are_those_of_exact_arithmetic(
    tokenizer: Tokenizer, kind: str, step: float
) -> None:
    schema: Schema = {"type": kind, "multipleOf": step}
    grammar = tokenizer.grammar("json", json.dumps(schema))
    for text in VALUES:
        value = Decimal(text)
        right = value % exact(step) == 0 and (kind == "number" or value == int(value))
        allowed = takes(grammar, text)
        assert right or not allowed, f"{schema} allows {text}"
        assert allowed or not right or not plain(text, kind == "integer"), f"{schema}: {text}"


LARGE = [
    (-(2**63), 2**63 - 1, [0, 5, -5, 2**62, -(2**62)], [2**63, -(2**63) - 1, 10**19]),
    (0, 2**64 - 1, [0, 1, 2**53 + 1, 10**18], [-1, 2**64]),
    (-(2**53) + 1, 2**53 - 1, [2**53 - 1, -(2**53) + 1], [2**53, -(2**53)]),
    (2**53 + 1, None, [2**53 + 2, 2**53 + 3, 10**17], [2**53, 2**53 + 1 - 1, 5]),
    (None, 2**53 + 1, [2**53, 0, -5], [2**53 + 2, 10**17]),
    (-1e20, 1e20, [0, -7, 10**15], [10**21]),
]


@pytest.mark.parametrize(("low", "high", "inner", "outer"), LARGE)
def test_large_integers(
    tokenizer: Tokenizer,
    low: float | None,
    high: float | None,
    inner: list[int],
    outer: list[int],
) -> None:
    bounds = {"minimum": low, "maximum": high}
    schema = {"type": "integer", **{name: end for name, end in bounds.items() if end is not None}}
    grammar = tokenizer.grammar("json", json.dumps(schema))
    assert [takes(grammar, str(value)) for value in inner] == [True] * len(inner)
    assert [takes(grammar, str(value)) for value in outer] == [False] * len(outer)


@pytest.mark.parametrize("end", [1e20, 1.797e308, 3.4028234663852886e38])
def test_large_numbers(tokenizer: Tokenizer, end: float) -> None:
    schema = {"type": "number", "minimum": -end, "maximum": end}
    grammar = tokenizer.grammar("json", json.dumps(schema))
    assert all(takes(grammar, text) for text in ["0", "-1.5", "123456789.25", "-1000000000000"])
    assert not takes(grammar, "1e309")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 99_999_989},
        {"type": "number", "multipleOf": 0.000123457},
        {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]},
        {"properties": {"a": {"multipleOf": 101}, "b": {"allOf": [{"multipleOf": 103}]}}},
        {"type": "integer", "multipleOf": 0},
        {"type": "integer", "multipleOf": -3},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "number", "minimum": 1e18},
        {"const": 2**53 + 1},
        {"enum": [{"a": [2**63 - 1]}]},
    ],
)
def test_what_no_bound_can_say_is_refused(tokenizer: Tokenizer, schema: Schema) -> None:
    with pytest.raises(ValueError, match=r"multipleOf|minimum|maximum|no double holds"):
        tokenizer.grammar("json", json.dumps(schema))
