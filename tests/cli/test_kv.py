"""`penstock kv` on directories that the test writes by the book (docs/kv-format.md)."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import kv
from penstock.cli.main import main

IDENTITY = {
    "cache": "ab" * 32,
    "layers": 4,
    "kv_heads": 3,
    "block_tokens": 16,
    "tile_bytes": 2048,
    "dtype": "bf16",
}
IDENTITY_BYTES = bytes.fromhex("4db5c2a07ef4cf9eb8b3f6ee8d2f2f0c6bb93aafc2f83c1a16f4be3e3b3d7a11")
"""Any will do: the name of the directory and the headers agree, and the identity file is not
believed.
"""
STORE = IDENTITY_BYTES[:16].hex()
FILE = 4096 + 16384


def crc64(data: bytes) -> int:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x9A6C9329AC4BC9B5 if value & 1 else 0)
        table.append(value)
    crc = 2**64 - 1
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 2**64 - 1


def write_part(root: Path, number: int, head: int = 0, age: int = 0) -> Path:
    digest = hashlib.sha256(bytes([number])).digest()
    payload = digest * 512
    body = b"PENSTKV\n" + struct.pack("<II", 1, 4096) + IDENTITY_BYTES + digest
    body += struct.pack("<HHHHQQ", 2, head, 0, 4, len(payload), crc64(payload))
    body = body.ljust(4088, b"\0")
    path = root / "penstock-kv-1" / STORE / digest[4:5].hex() / f"{digest.hex()}-2.h{head}.l0-4"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body + struct.pack("<Q", crc64(body)) + payload)
    os.utime(path, times=(time.time() - age,) * 2)
    return path


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [write_part(tmp_path, number, age=3600 * 24 * number) for number in range(5)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    status = main(["kv", *map(str, arguments)])
    return status, capsys.readouterr().out


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, *arguments, "--json")[1])
    return found


def test_the_checksum_of_this_test_is_the_documented_one() -> None:
    assert crc64(b"123456789") == 0xAE8B14860A799888


def test_ls(tmp_path: Path, parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    write_part(tmp_path, 0, head=1)
    status, text = run(capsys, "ls", tmp_path)
    assert status == 0
    head, store, total = text.splitlines()
    assert head.split() == ["STORE", "CHUNKS", "FILES", "BYTES", "LAST", "USE", "WHAT"]
    assert store.split()[:5] == [STORE, "5", "6", "120.00", "KiB"]
    assert time.strftime("%Y-%m-%d", time.localtime()) in store
    assert "identity.json is missing" in store
    assert total == "120.00 KiB in all"
    assert report(capsys, "ls", tmp_path)["bytes"] == (len(parts) + 1) * FILE


def test_an_identity_file_that_is_another_ones_is_not_believed(
    tmp_path: Path, parts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = {"format": 1, "about": "anything", "identity": IDENTITY}
    (parts[0].parent.parent / "identity.json").write_text(json.dumps(file))
    (store,) = report(capsys, "ls", tmp_path)["stores"]
    assert store["about"] is None
    assert store["bytes"] == 5 * FILE


def test_verify(tmp_path: Path, parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "verify", tmp_path) == (0, "5 files, 100.00 KiB read, 0 damaged\n")
    damaged = bytearray(parts[1].read_bytes())
    damaged[12345] ^= 4
    parts[1].write_bytes(damaged)
    parts[3].write_bytes(b"short")
    status, text = run(capsys, "verify", tmp_path)
    assert status == 1
    assert f"{parts[1]}: the payload's checksum is wrong" in text
    assert f"{parts[3]}: " in text
    assert "2 damaged\n" in text
    status, text = run(capsys, "verify", tmp_path, "--quarantine")
    assert status == 1
    assert "2 damaged, put aside" in text
    assert not parts[1].exists()
    assert not parts[3].exists()
    assert run(capsys, "verify", tmp_path)[0] == 0
    assert "2 damaged files put aside" in run(capsys, "ls", tmp_path)[1]


def test_gc(tmp_path: Path, parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    left = parts[0].with_name(".tmp-0123456789abcdef-1")
    left.write_bytes(bytes(5000))
    os.utime(left, times=(time.time() - 7200,) * 2)
    assert run(capsys, "gc", tmp_path) == (
        0,
        "0 chunks and 1 other files removed, 8.00 KiB; 100.00 KiB left\n",
    )
    assert report(capsys, "gc", tmp_path, "--older-than", "80h")["chunks"] == 1
    assert [path.exists() for path in parts] == [True, True, True, True, False]
    assert report(capsys, "gc", tmp_path, "--limit", "50KiB")["bytes_left"] == 2 * FILE
    assert [path.exists() for path in parts] == [True, True, False, False, False]
    assert report(capsys, "gc", tmp_path, "--identity", STORE[:6])["chunks"] == 2
    assert not (tmp_path / "penstock-kv-1" / STORE).exists()


@pytest.mark.parametrize("act", ["ls", "verify", "gc"])
def test_no_store_is_an_error_that_says_so(
    tmp_path: Path, act: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kv", act, str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path} has no penstock-kv-1" in error
    assert "--kv-tier" in error


@pytest.mark.parametrize("arguments", [["--older-than", "soon"], ["--limit", "much"]])
def test_wrong_rules_are_refused(
    tmp_path: Path, parts: list[Path], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kv", "gc", str(tmp_path), *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err
    assert all(path.exists() for path in parts)


def test_ctrl_c_ends_verify(
    tmp_path: Path, parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kv._Meter, "show", interrupt)
    assert main(["kv", "verify", str(tmp_path)]) == 130


def test_progress_is_on_one_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with kv._Meter("verified", kv.size) as meter:
        meter.show(1 << 20, 4 << 20)
        assert capsys.readouterr().err == ""
        now = 102.0
        meter.show(1 << 20, 4 << 20)
        assert "verified 1.00 MiB of 4.00 MiB, 6 s left" in capsys.readouterr().err
