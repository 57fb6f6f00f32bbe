"""YAML that any reader takes for the same data."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.parts import Condition, Place, when

# Without characters that YAML cannot hold, or reads as the end of a line.
PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" \t")
TEXTS = st.one_of(
    st.sampled_from(["n", "on", "1e3", "0x1f", "", "a: b", "- x", "#"]), st.text(PRINTABLE)
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=5))
def test_what_is_written_is_read(value: dict[str, object]) -> None:
    assert yaml.safe_load(dump(value)) == value


def test_texts_are_quoted_and_keys_keep_their_order() -> None:
    data = {"b": "n", "a": [{"x": 1, "on": ["y", []]}, "2"], "c": {}}
    lines = [
        'b: "n"',
        "a:",
        "  - x: 1",
        '    "on":',
        '      - "y"',
        "      - []",
        '  - "2"',
        "c: {}",
    ]
    assert dump(data).splitlines() == lines


def test_neighbours_under_one_condition_share_it() -> None:
    on = Condition("$.Values.on")
    data = {"a": Place("$.Values.a"), "b": when(on, 1), "c": when(on, [when(on, "x"), "y"])}
    lines = [
        "a: {{ toJson $.Values.a }}",
        "{{- if $.Values.on }}",
        "b: 1",
        "c:",
        "  {{- if $.Values.on }}",
        '  - "x"',
        "  {{- end }}",
        '  - "y"',
        "{{- end }}",
    ]
    assert dump(data).splitlines() == lines


def test_a_condition_of_a_template_is_not_asked_by_if() -> None:
    with pytest.raises(TypeError, match=r"\$\.Values\.on is not known"):
        bool(Condition("$.Values.on"))
