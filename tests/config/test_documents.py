"""YAML files within bounds, for every command that reads one."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main
from penstock.config.documents import DEEPEST, LARGEST, MOST, compose, read_document, read_trees
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
    "no truth": "a: 1\nb: !!bool foo",
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


@pytest.mark.parametrize(
    "value",
    [
        "!!bool foo",
        "!!timestamp foo",
        "!!int ''",
        "!!float ''",
        "!!int '0x'",
        "2026-99-99",
        "1" * 5000,
        "!!float abc",
        "!!binary é",
        "!!omap foo",
        "[1, {b: !!bool foo}]",
        # YAML has these, JSON has not.
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "!!binary aGVsbG8=",
        "!!set {b}",
        "!!omap [{b: 1}]",
        "[.nan]",
        "-.inf",
        "{8000: b}",
        "{2026-01-01: b}",
        "{null: b}",
        "[{true: b}]",
        "0x" + "f" * 5000,
    ],
)
def test_a_value_that_no_setting_has_is_an_error_with_its_line(tmp_path: Path, value: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"é: é\nlist:\n- a: {value}\n")
    with pytest.raises(PenstockError, match=rf"^{file}:3: "):
        read_document(file)


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
def test_a_control_character_has_its_line(tmp_path: Path, loader: object) -> None:
    file = tmp_path / "a.yaml"
    with pytest.raises(PenstockError, match=rf"^{file}:52: not YAML: "):
        compose("a: " + "é😀\n" * 50 + "\n\u0007: 1\n\n\n", file, loader)


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
@pytest.mark.parametrize("kind", ["aliases", "nested lists", "a list in itself", "no truth"])
def test_commands_name_file_and_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    kind: str,
) -> None:
    (tmp_path / "bad.yaml").write_text(HOSTILE[kind])
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "bad.yaml"]) in (1, 2)
    assert re.search(r"bad.yaml:\d+: ", "".join(capsys.readouterr()))


@pytest.mark.parametrize("command", ["gateway --config", "route lint --config"])
@pytest.mark.parametrize(
    "value", ["listen: 2026-01-01", "listen: !!binary aGk=", "pools: [{name: a, 8000: b}]"]
)
def test_a_gateway_refuses_what_json_lacks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    value: str,
) -> None:
    (tmp_path / "bad.yaml").write_text(f"# a gateway\n{value}\n")
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "bad.yaml"]) in (1, 2)
    assert "bad.yaml:2: " in "".join(capsys.readouterr())
