"""YAML files within bounds, for every command that reads one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from penstock.config.documents import DEEPEST, LARGEST, MOST, read_document, read_trees
from penstock.core import PenstockError

BOMB = "\n".join(
    [
        "a: &a [x,x,x,x,x,x,x,x,x]",
        *(
            f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]"
            for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ]
)
MERGED = "\n".join(
    [
        "a: &a {x: 1, y: 2}",
        *(
            f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 9)}]}}"
            for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ]
)
HOSTILE = {
    "aliases": BOMB,
    "merges": MERGED,
    "nested lists": "a: " + "[" * 3000 + "]" * 3000,
    "nested mappings": "a: " + "{a: " * 3000 + "}" * 3000,
    "unclosed": "[" * 100_000,
    "block": "\n".join(" " * i + "a:" for i in range(500)),
    "a list in itself": "a: &a [*a]",
    "a mapping in itself": "a: &a\n  b: *a",
    "deep aliases": "\n".join(
        ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 3000))]
    ),
    "many values": "a: [" + "1," * (MOST + 1) + "]",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_an_error_with_its_line(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(HOSTILE[kind])
    began = time.process_time()
    with pytest.raises(PenstockError, match=rf"^{file}:\d+: "):
        read_trees(file)
    assert time.process_time() - began < 5


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(PenstockError, match="over 8 MiB"):
        read_document(file)


@pytest.mark.parametrize(
    "text",
    [
        "a: 2026-99-99",
        "a: " + "1" * 5000,
        "a: !!python/object:os.system x",
        "? [a]\n: 1",
        "a: \u0007",
        "a: 1\n---\nb: 2",
        "- a",
        "",
    ],
)
def test_what_is_no_mapping_is_an_error_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(PenstockError, match=rf"^{file}:\d+: "):
        read_document(file)


def test_what_is_within_bounds_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    deep: object = 1
    for _ in range(DEEPEST - 1):
        deep = [deep]
    file.write_text(json.dumps({"a": deep}))
    assert read_document(file) == {"a": deep}
    file.write_text("base: &b {x: 1}\nother: {<<: *b, y: 2}\nlist: [*b, *b]")
    assert read_document(file) == {
        "base": {"x": 1},
        "other": {"x": 1, "y": 2},
        "list": [{"x": 1}, {"x": 1}],
    }


@pytest.mark.parametrize(
    "command",
    [
        "gateway --config",
        "gateway --backend http://127.0.0.1:1 --profile",
        "route lint",
        "route lint --config",
        "deploy k8s --image a/b:1 --claim c -o out",
        "deploy lint",
        "bench plan --model a",
        "serve --config",
    ],
)
@pytest.mark.parametrize("kind", ["aliases", "nested lists", "a list in itself"])
def test_commands_name_file_and_line(tmp_path: Path, command: str, kind: str) -> None:
    (tmp_path / "bad.yaml").write_text(HOSTILE[kind])
    words = [sys.executable, "-m", "penstock", *command.split(), "bad.yaml"]
    found = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode in (1, 2), found.stderr
    assert "Traceback" not in found.stderr
    assert re.search(r"bad.yaml:\d+: ", found.stdout + found.stderr)
