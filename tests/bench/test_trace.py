"""`bench trace` from its flags to its block."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_lab.bench import client
from tests.bench.servers import serving_model
from tests.fakes.load import PlayedRun

MOONCAKE = """{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
{"timestamp": 2000, "input_length": 700, "output_length": 4, "hash_ids": [0, 2]}
"""


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    return path


def test_a_trace_is_replayed(
    mooncake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[PlayedRun] = []

    def open_run(description: str) -> PlayedRun:
        runs.append(PlayedRun(description))
        return runs[-1]

    monkeypatch.setattr(client, "native_run", open_run)
    with serving_model(max_model_len=700) as url:
        words = [
            "--time-scale",
            "0.5",
            "--prompt-ids",
            "--vocab-size",
            "1000",
            "--max-concurrency",
            "4",
        ]
        assert main(["bench", "trace", str(mooncake), "--base-url", url, *words]) == 0
    printed = capsys.readouterr().out
    assert "Successful requests:                     2" in printed
    assert "Request rate configured (RPS):           2.00" in printed
    assert "Prompts cut to fit the server:           1" in printed
    assert runs[0].target["max_concurrency"] == 4


def test_a_file_that_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nonsense"
    path.write_text("hello\n")
    with serving_model() as url:
        words = ["--base-url", url, "--prompt-ids", "--vocab-size", "1000"]
        assert main(["bench", "trace", str(path), *words]) == 1
    assert "hello" in capsys.readouterr().err
