"""The end of a server's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_lab.bench.compare.server_under_test import log_tail


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (b"", ""),
        (b"one\n  two \n", "one / two"),
        (b"x\n" * 10**6 + b"a\nb\nc\nd\n\xffe\n", "a / b / c / d / \ufffde"),
    ],
)
def test_the_last_five_lines(tmp_path: Path, log: bytes, end: str) -> None:
    (tmp_path / "log").write_bytes(log)
    assert log_tail(tmp_path / "log") == end
