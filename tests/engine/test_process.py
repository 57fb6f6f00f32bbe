"""The engine process from the front door's side of a real socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.config import resolve
from penstock.wire import EngineFrame, Fatal, FrameReader, Hello, decode_engine_frame


class Listener:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(1)
        self.socket.settimeout(30)

    def frames(self) -> Iterator[EngineFrame]:
        connection, _ = self.socket.accept()
        connection.settimeout(30)
        reader = FrameReader(decode_engine_frame)
        with connection:
            while data := connection.recv(65536):
                yield from reader.feed(data)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "engine.sock")
    yield made
    made.socket.close()


def start(listener: Listener, model: Path) -> subprocess.Popen[str]:
    config = resolve({}, str(model), "model").engine.to_json()
    command = [sys.executable, "-m", "penstock.engine", "--socket", str(listener.path), "--config", config]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_model_that_cannot_be_loaded_is_fatal_with_the_reason(listener: Listener, tmp_path: Path) -> None:
    engine = start(listener, tmp_path / "missing.gguf")
    frames = list(listener.frames())
    _, errors = engine.communicate(timeout=30)
    assert isinstance(frames[0], Hello)
    assert frames[0].pid == engine.pid
    assert isinstance(frames[-1], Fatal)
    assert "missing.gguf: no such file" in frames[-1].message
    assert engine.returncode == 1
    assert "Traceback" not in errors


def test_without_a_front_door_the_engine_says_so_and_ends(tmp_path: Path) -> None:
    config = resolve({}, "model", "model").engine.to_json()
    command = [
        sys.executable,
        "-m",
        "penstock.engine",
        "--socket",
        str(tmp_path / "none"),
        "--config",
        config,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=os.environ)
    assert ended.returncode == 1
    assert "cannot connect to the front door" in ended.stderr
