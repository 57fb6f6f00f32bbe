"""The engine process from the API server's side of a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from penstock._native import FrameReader, encode_frame
from penstock.config import resolve
from penstock.core import FinishReason, GenerationParams, Request, StepOutput
from penstock.engine.frontend import (
    Cancel,
    EngineFrame,
    Fatal,
    FrontFrame,
    Hello,
    Ready,
    Shutdown,
    Step,
)
from tests.fakes.sampling import encode
from tests.limits import HANG

F = TypeVar("F")


class Listener:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(1)
        self.socket.settimeout(HANG)

    def frames(self) -> Iterator[EngineFrame]:
        connection, _ = self.socket.accept()
        connection.settimeout(HANG)
        reader = FrameReader(of_engine=True)
        with connection:
            while data := connection.recv(65536):
                yield from reader.feed(data)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "engine.sock")
    yield made
    made.socket.close()


def start(listener: Listener, model: Path) -> subprocess.Popen[str]:
    process = launch(listener.path)
    assert process.stdin is not None
    process.stdin.write(resolve({}, str(model), "model").engine.to_json())
    process.stdin.close()
    process.stdin = None
    return process


def launch(path: Path) -> subprocess.Popen[str]:
    """An engine that waits for its configuration."""
    command = [sys.executable, "-m", "penstock.engine", "--socket", str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_model_that_cannot_be_loaded_is_fatal_with_the_reason(
    listener: Listener, tmp_path: Path
) -> None:
    engine = start(listener, tmp_path / "missing.gguf")
    frames = list(listener.frames())
    _, errors = engine.communicate(timeout=HANG)
    assert isinstance(frames[0], Hello)
    assert frames[0].pid == engine.pid
    assert isinstance(frames[-1], Fatal)
    assert "missing.gguf: no such file" in frames[-1].message
    assert engine.returncode == 1
    assert "Traceback" not in errors


def test_without_a_front_door_the_engine_says_so_and_ends(tmp_path: Path) -> None:
    ended = launch(tmp_path / "none")
    _, errors = ended.communicate(resolve({}, "model", "model").engine.to_json(), timeout=HANG)
    assert ended.returncode == 1
    assert "cannot connect to the API server" in errors


class FrontDoor:
    """The API server's side of one connection, waiting for frames as it needs them."""

    def __init__(self, listener: Listener) -> None:
        self.connection, _ = listener.socket.accept()
        self.connection.settimeout(HANG)
        self.reader = FrameReader(of_engine=True)
        self.arrived: list[EngineFrame] = []

    def send(self, frame: FrontFrame) -> None:
        self.connection.sendall(encode_frame(frame))

    def next(self, kind: type[F]) -> F:
        """The next frame of `kind`; others before it are dropped."""
        while True:
            while self.arrived:
                frame = self.arrived.pop(0)
                if isinstance(frame, kind):
                    return frame
            data = self.connection.recv(65536)
            assert data, f"the engine left before it sent {kind.__name__}"
            self.arrived += self.reader.feed(data)

    def rows(self, request_id: int) -> list[StepOutput]:
        """All rows of a request."""
        found: list[StepOutput] = []
        while not found or not found[-1].finish:
            found += [row for row in self.next(Step).outputs.rows() if row.id == request_id]
        return found


@pytest.fixture
def engine(
    listener: Listener, model_file: Path
) -> Iterator[tuple[subprocess.Popen[str], FrontDoor]]:
    pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")
    process = start(listener, model_file)
    front = FrontDoor(listener)
    front.next(Ready)
    yield process, front
    front.connection.close()
    process.communicate(timeout=HANG)


Running = tuple[subprocess.Popen[str], FrontDoor]


def ask(request_id: int, max_tokens: int) -> Request:
    params = GenerationParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id, array("i", range(100, 140)), params, sampling=encode())


def test_requests_are_answered_and_a_shutdown_ends_the_rest(engine: Running) -> None:
    process, front = engine
    front.send(ask(1, 5))
    rows = front.rows(1)
    assert sum(len(row.tokens) for row in rows) == 5
    assert rows[-1].finish is FinishReason.LENGTH
    front.send(ask(2, 4000))
    front.next(Step)
    front.send(Shutdown())
    assert front.rows(2)[-1].finish is FinishReason.CANCELLED
    assert process.wait(HANG) == 0


def test_a_cancelled_request_gives_its_blocks_back(engine: Running) -> None:
    _, front = engine
    front.send(ask(1, 4000))
    while not front.next(Step).stats.blocks_used:
        pass
    front.send(Cancel([1]))
    assert front.rows(1)[-1].finish is FinishReason.CANCELLED
    assert front.next(Step).stats.blocks_used == 0


def test_signals_are_the_front_doors_business_and_its_end_ends_the_engine(engine: Running) -> None:
    process, front = engine
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    front.send(ask(1, 2))
    assert front.rows(1)[-1].finish is FinishReason.LENGTH
    front.connection.close()
    assert process.wait(HANG) == 0


def test_an_idle_engine_sends_heartbeats_and_takes_no_time(engine: Running) -> None:
    process, front = engine
    front.next(Step)
    before = processor_seconds(process.pid)
    began = time.monotonic()
    front.next(Step)
    front.next(Step)
    elapsed = time.monotonic() - began
    assert elapsed > 1.0
    assert processor_seconds(process.pid) - before < 0.05 * elapsed + 0.02


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
