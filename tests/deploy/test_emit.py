"""YAML that any reader takes for the same data."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.parts import Condition, Noted, ValueReference, when

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


MARKS = "-:,#'\"[]{}&*!|>%@`?\\~=<.0 \n\tnyeoNaf/"


@given(st.lists(st.text(st.sampled_from(MARKS)), min_size=1), st.booleans())
def test_what_looks_like_yaml_is_read_as_text(texts: list[str], deep: bool) -> None:
    value: dict[str, object] = {"a": texts, "b": {"c": texts[0]}}
    value = {"x": [value, [texts]]} if deep else value
    assert yaml.load(dump(value), Loader=yaml.SafeLoader) == value
    if hasattr(yaml, "CSafeLoader"):
        assert yaml.load(dump(value), Loader=yaml.CSafeLoader) == value


@pytest.mark.parametrize(
    "text",
    ["apps/v1", "--kv-tier=ram:200MiB", "-tp", "/models", "reg/a@sha256:00", "a,b", "e1", "Inf"],
)
def test_plain_texts_have_no_quotes(text: str) -> None:
    assert dump({"a": text}) == f"a: {text}\n"


@pytest.mark.parametrize(
    "text",
    [
        "8",
        "1e3",
        "0x1f",
        "8000:8000",
        "--host=::",
        "a:",
        "- a",
        "--",
        "---",
        "~",
        "=",
        "<<",
        ".inf",
    ],
)
def test_ambiguous_texts_have_quotes(text: str) -> None:
    assert dump({"a": text}) == f'a: "{text}"\n'


def test_texts_of_several_lines_are_blocks() -> None:
    data = {"a": "b:\n  c: 1\n\n  d: 2\n", "e": ["x\ny"], "f": " x\ny\n", "g": "x\n\n"}
    lines = ["a: |", "  b:", "    c: 1", "", "    d: 2"]
    lines += ["e:", "  - |-", "    x", "    y", r'f: " x\ny\n"', r'g: "x\n\n"']
    assert dump(data).splitlines() == lines


def test_words_of_yaml_are_quoted_and_keys_keep_their_order() -> None:
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
    data = {
        "a": ValueReference("$.Values.a"),
        "b": when(on, 1),
        "c": when(on, [when(on, "x"), "y"]),
    }
    lines = [
        "a: {{ toJson $.Values.a }}",
        "{{- if $.Values.on }}",
        "b: 1",
        "c:",
        "  {{- if $.Values.on }}",
        "  - x",
        "  {{- end }}",
        '  - "y"',
        "{{- end }}",
    ]
    assert dump(data).splitlines() == lines


def test_a_condition_of_a_template_is_not_asked_by_if() -> None:
    with pytest.raises(TypeError, match=r"\$\.Values\.on is not known"):
        bool(Condition("$.Values.on"))


def test_a_note_is_a_comment_above_its_text() -> None:
    data = {"a": {"b": Noted.by("2", "waits: 1 x\n2\x1b s"), "c": Noted.by("x", "y")}}
    lines = ["a:", "  # waits: 1 x 2  s", '  b: "2"', "  # y", "  c: x"]
    assert dump(data).splitlines() == lines
    assert yaml.safe_load(dump(data)) == {"a": {"b": "2", "c": "x"}}
