"""`penstock pull` and `penstock models`, as processes, with a hub on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.hub import ALIASES
from tests.e2e.server import eventually
from tests.fakes.hub import FakeHub, fake_hub
from tests.limits import HANG

CONTENT = bytes(range(256)) * (1 << 18)
"""64 MiB: pieces of 8 MiB."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "penstock"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield made


def test_a_model_is_pulled_listed_and_removed(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    commit = hub.add("org/m-GGUF", {"m-Q8_0.gguf": b"8" * (2 << 20)})
    assert main(["pull", "org/m-GGUF:Q8_0", "--revision", "main"]) == 0
    out, err = capsys.readouterr()
    path = tmp_path / "hub" / "models--org--m-GGUF" / "snapshots" / commit / "m-Q8_0.gguf"
    assert out == f"org/m-GGUF:Q8_0 is at {path} (2 MiB)\n"
    assert err == f"org/m-GGUF:Q8_0: downloading 2 MiB (1 file) to {tmp_path / 'hub'}\n"
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "QUANT", "SIZE", "WHERE"]
    assert lines[1].split() == ["org/m-GGUF:Q8_0", "Q8_0", "2", "MiB", str(path)]
    assert lines[2] == "1 entry, 2 MiB. `penstock models aliases` lists models to pull."
    assert main(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "org/m-GGUF:Q8_0",
            "alias": None,
            "quantisation": "Q8_0",
            "bytes": 2 << 20,
            "path": str(path),
            "state": "whole",
        }
    ]
    assert main(["models", "rm", "org/m-GGUF:Q8_0"]) == 0
    assert capsys.readouterr().out.endswith("2 MiB freed\n")
    assert main(["models"]) == 0
    assert capsys.readouterr().out.startswith("0 entries, 0 MiB.")
    assert main(["models", "rm", "org/m-GGUF:Q8_0"]) == 1
    assert "is not in the caches" in capsys.readouterr().err


def test_aliases_have_size_licence_and_a_sentence(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "aliases"]) == 0
    text = capsys.readouterr().out
    assert "qwen3-8b (about 5.0 GB, Apache-2.0)\n    8B parameters, for 16 GB; " in text
    assert "    Qwen/Qwen3-8B-GGUF:Q4_K_M\n" in text
    assert main(["models", "aliases", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["alias"] for row in rows] == list(ALIASES)
    assert all(row["bytes"] and row["licence"] and row["about"] for row in rows)
    assert not any(row["here"] for row in rows)


def test_a_directory_for_a_container(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/m", {"config.json": b"{}", "model.safetensors": b"w" * 5000})
    local = tmp_path / "models" / "m"
    assert main(["pull", "org/m", "--local-dir", str(local)]) == 0
    assert (local / "model.safetensors").read_bytes() == b"w" * 5000


def test_ctrl_c_leaves_a_part_that_the_same_command_continues(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/m-GGUF", {"m-Q8_0.gguf": CONTENT})
    hub.gate = threading.Event()
    command = [sys.executable, "-m", "penstock", "pull", "org/m-GGUF"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    eventually(lambda: any(one.server == "cdn" for one in hub.asked), "a download")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == 130
    stopped = "org/m-GGUF: stopped; the same command continues the download"
    assert said.splitlines()[-1] == stopped
    hub.gate.set()
    hub.gate = None
    hub.fault("cdn:", cut=9 << 20, times=2)
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.split(" is at ")[1].rpartition(" (")[0])
    assert path.read_bytes() == CONTENT
    blobs = tmp_path / "hub" / "models--org--m-GGUF" / "blobs"
    assert [each.name for each in blobs.iterdir()] == [Path(os.readlink(path)).name]


def test_a_plan_takes_the_configuration_alone(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], repository: Path
) -> None:
    config = (repository / "tests/fixtures/tiny/llama/config.json").read_bytes()
    hub.add("org/llama", {"config.json": config, "model.safetensors": b"w" * 5000})
    for command in (["model", "show", "org/llama"], ["plan", "org/llama", "--on", "h100"]):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "config.json of org/llama from the hub, revision" in out
    assert [path.rpartition("/")[2] for path in hub.files_asked()] == ["config.json"]
