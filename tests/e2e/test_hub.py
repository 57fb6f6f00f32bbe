"""A server whose model comes from a hub on loopback, over a connection that breaks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.server import eventually
from tests.fakes.hub import FakeHub, fake_hub
from tests.limits import HANG

NAME = "org/SmolLM2-GGUF:Q4_1"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield made


def test_a_model_is_served_by_its_name_after_two_interruptions(
    hub: FakeHub, serve: Serve, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/SmolLM2-GGUF", {FILE: model_file.read_bytes(), "mmproj-f16.gguf": b"p" * 5000})
    hub.gate = threading.Event()
    pulling = subprocess.Popen([sys.executable, "-m", "penstock", "pull", NAME])
    eventually(lambda: any(one.server == "cdn" for one in hub.asked), "a download")
    pulling.send_signal(signal.SIGINT)
    assert pulling.wait(HANG) == 130
    hub.gate.set()
    hub.gate = None
    hub.fault("cdn:", cut=3 << 20, times=2)
    with serve("--max-model-len", "512", model=NAME) as server:
        assert any(f"{NAME}: downloading 94 MiB (1 file) to" in line for line in server.log)
        with server.client() as client:
            (served,) = client.get("/v1/models").json()["data"]
            assert served["id"] == NAME
            body = {"model": NAME, "prompt": "The capital of France is", "max_tokens": 4}
            answer = client.post("/v1/completions", json={**body, "temperature": 0}).json()
            assert "Paris" in answer["choices"][0]["text"]
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with serve("--max-model-len", "512", model=NAME) as server:
        assert not any("downloading" in line for line in server.log)
    assert not hub.asked


def test_what_a_hub_lacks_ends_the_start(hub: FakeHub) -> None:
    hub.add("org/m", {"README.md": b"#"})
    command = [sys.executable, "-m", "penstock", "serve", "org/m"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "penstock: error: org/m: the repository has neither safetensors with a config.json nor "
        "GGUF files; it has README.md"
    )
