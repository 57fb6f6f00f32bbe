"""Measurements, in this process and by their program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.config.sections import TierConfig
from penstock.core import PenstockError
from penstock_ops.verify.checks import cpu
from penstock_ops.verify.checks.parsing import measurement
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.measurements.__main__ import main
from penstock_ops.verify.measurements.host import UNRESOLVED, names
from penstock_ops.verify.measurements.memory import memory_rate
from penstock_ops.verify.measurements.storage import LEAST_FILE, read_rate
from penstock_ops.verify.measurements.stores import rates
from penstock_ops.verify.sources import collect


def test_the_host_by_its_program() -> None:
    found = collect("n", [cpu.HOST])["host"]
    assert found.is_present, found.detail
    numbers = measurement(found.text, "cpus", "cpus_in_mask", "shared_memory_bytes", "amx_error")
    assert 1 <= numbers["cpus"] <= numbers["cpus_in_mask"]
    assert cpu.HOST.command[0] == sys.executable


def test_memory_is_read_by_all_cpus() -> None:
    found = memory_rate(0.05)
    assert found["gb_per_s"] > 0
    assert found["bytes"] > 0


def test_files_are_read_whole_and_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    sizes = {"a": 3 * LEAST_FILE + 17, "sub/b": 20 * LEAST_FILE, "small": 100}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    found = read_rate(str(tmp_path), 60.0)
    assert found["bytes"] == sizes["a"] + sizes["sub/b"]
    assert found["gb_per_s"] > 0


def test_an_empty_directory_has_no_rate(tmp_path: Path) -> None:
    assert read_rate(str(tmp_path))["bytes"] == 0


def test_names_are_resolved_or_not() -> None:
    found = names("localhost", "no-such-host.invalid", "x" * 300)
    assert found["localhost"] >= 0
    assert found["no-such-host.invalid"] == found["x" * 300] == UNRESOLVED


def test_chunks_go_through_the_engines_client(tmp_path: Path) -> None:
    tier = TierConfig("disk", size_bytes=1 << 30, path=str(tmp_path / "kv"))
    found = rates(tier)
    assert min(found.values()) > 0
    left = [path for path in (tmp_path / "kv").rglob("*") if path.stat().st_size > LEAST_FILE]
    assert not left


def test_a_store_that_is_not_there_is_named_without_its_password() -> None:
    tier = TierConfig("redis", url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(PenstockError, match=r"127\.0\.0\.1:1") as raised:
        rates(tier)
    assert "secret" not in str(raised.value)


def test_numbers_are_printed_in_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["names", "no-such-host.invalid"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"no-such-host.invalid": -1.0}
    assert measurement(printed, "no-such-host.invalid")["no-such-host.invalid"] == -1


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["store", str(tmp_path / "absent.yaml"), "0"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1e+05}', '{"a": true}', '{"a": NaN}', "{"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="line 1"):
        measurement(text, "a")
