"""Listings of a hub, which may be hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.errors import HubError, shown
from penstock.hub.listing import RemoteFile, from_json, is_safe, of_answers, to_json

SHA1, SHA256 = "a" * 40, "b" * 64
FILE = {"type": "file", "path": "config.json", "size": 3, "oid": SHA1}


def test_small_and_large_files() -> None:
    large = {
        **FILE,
        "path": "x/m.gguf",
        "size": 134,
        "lfs": {"oid": SHA256, "size": 5, "pointerSize": 134},
        "xetHash": SHA256,
    }
    folder = {"type": "directory", "path": "x", "oid": SHA1, "size": 0}
    assert of_answers("o/r", [FILE, large, folder]) == {
        "config.json": RemoteFile("config.json", 3, SHA1),
        "x/m.gguf": RemoteFile("x/m.gguf", 5, SHA1, SHA256, SHA256),
    }


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "a/.",
        "",
        "a\\b",
        "a\x1b[2Jb",
        "a\nb",
        "a\u202eb",
        "a\0b",
        "\ud800",
        "x" * 256,
        "/".join(["x"] * 600),
        None,
        7,
    ],
)
def test_a_name_that_is_no_path_inside_a_repository(name: object) -> None:
    assert not is_safe(name)
    with pytest.raises(HubError, match=r"^o/r: the hub lists a file named .*nothing of it is"):
        of_answers("o/r", [FILE, {**FILE, "path": name}])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": -1}, "its size as -1"),
        ({"size": 1 << 60}, "its size as 11529"),
        ({"size": True}, "its size as True"),
        ({"size": None}, "its size as None"),
        ({"oid": "../x"}, "its hash as ../x"),
        ({"oid": SHA1.upper()}, "its hash as AAAA"),
        ({"lfs": {"oid": "x", "size": 3}}, "its SHA-256 as x"),
    ],
)
def test_a_file_without_size_or_hash(change: dict[str, Any], said: str) -> None:
    with pytest.raises(HubError) as refused:
        of_answers("o/r", [{**FILE, **change}])
    assert str(refused.value).startswith("o/r: config.json: ")
    assert said in str(refused.value)


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(SHA1)
KEYS = st.sampled_from(["type", "path", "size", "oid", "lfs", "files", "format_version"])
TREES = st.recursive(
    SCALARS | st.just("file") | st.just("a/b.gguf"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=7),
)


@given(st.lists(TREES, max_size=4))
def test_any_answer_is_a_listing_or_an_error(entries: list[object]) -> None:
    try:
        found = of_answers("o/r", entries)
    except HubError as error:
        found, said = {}, str(error)
    else:
        said = ""
    assert said.isprintable()
    assert all(is_safe(name) for name in found)
    assert from_json("o/r", json.loads(json.dumps(to_json(found)))) == found


@given(TREES)
def test_any_file_in_the_cache_is_a_listing_or_none(data: object) -> None:
    found = from_json("o/r", data)
    assert found is None or all(is_safe(name) for name in found)


@given(st.text())
def test_words_of_others_are_on_one_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text)) <= 300
