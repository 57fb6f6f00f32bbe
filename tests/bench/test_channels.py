"""Messages between processes: every pattern brings every message back, and losses are errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.cli.main import main
from penstock.core import PenstockError
from penstock_lab.bench.channels import actors, command, processes
from penstock_lab.bench.channels.processes import WorkerLaunch, Workers
from tests.limits import HANG
from tests.namespaces import Hosts


@pytest.mark.parametrize("kind", ["ring", "stream"])
@pytest.mark.parametrize(("count", "chain", "answers"), [(1, True, 1), (2, True, 1), (2, False, 2)])
def test_messages_come_back_whole(kind: str, count: int, chain: bool, answers: int) -> None:
    with Workers(kind, count, 1 << 20, WorkerLaunch(), chain=chain) as workers:
        for size in (1, 1000, 1 << 20):
            message = np.random.default_rng(size).bytes(size)
            assert workers.exchange(message) == [message] * answers
        children = list(workers._children)
    assert all(child.returncode is not None for child in children)


def test_a_worker_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers("stream", 1, 1 << 10, WorkerLaunch(), chain=True) as workers:
        assert workers.exchange(b"one") == [b"one"]
        monkeypatch.setattr("penstock_lab.bench.channels.links.PATIENCE", 1.0)
        workers._children[0].kill()
        workers._children[0].wait()
        with pytest.raises(PenstockError, match=r"a worker was lost .*exit statuses: \[-9\]"):
            workers.exchange(b"two")


def test_rings_that_do_not_fit_name_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 0, 0, 256, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    monkeypatch.setattr(processes, "shared_memory_directory", lambda: tmp_path)
    with (
        pytest.raises(PenstockError, match=r"has 1 MiB free, .* lower --sizes or --workers$"),
        Workers("ring", 1, 1 << 20, WorkerLaunch(), chain=True),
    ):
        pass
    assert not list(tmp_path.iterdir())


class Played:
    """An exchange whose answers are given."""

    def __init__(self, answer: Callable[[bytes], list[bytes]]) -> None:
        self.answer = answer
        self.rounds = 0

    def exchange(self, message: bytes) -> list[bytes]:
        self.rounds += 1
        return self.answer(message)


def test_rounds_are_bounded_and_answers_checked() -> None:
    quick = Played(lambda message: [message])
    assert len(command.timed(quick, 300, 1e-9)) == command.ROUNDS[0]
    assert len(command.timed(quick, 1, 3600)) == command.ROUNDS[1]
    with pytest.raises(PenstockError, match="300 bytes came back changed"):
        command.timed(Played(lambda message: [message, message[:-1]]), 300, 1)


class FakeRay:
    """Ray's calls and graphs, computed at once: what is bound or called, in order."""

    def __init__(self, *_: object) -> None:
        self.ray = self
        self.made: list[Any] = []
        self.released: list[int] = []

    def reserve(self, bundles: list[Any], strategy: str) -> int:
        self.strategy = strategy
        return len(bundles)

    def reserved(self, group: int, timeout: float) -> bool:
        return group < 9

    def actor(self, kind: type, *_: object) -> Any:
        own, at, made = kind(), len(self.made), self

        class Method:
            def remote(self, message: Any) -> Any:
                made.calls.append(at)
                return own.echo(message)

            bind = remote

        actor = type("Actor", (), {"echo": Method()})()
        self.made.append(actor)
        return actor

    def graph(self, build: Any, *_: object, **__: object) -> Any:
        class Graph:
            def execute(self, message: bytes) -> Any:
                return build(message)

            def teardown(self) -> None:
                made.torn = True

        made = self
        return Graph()

    def get(self, found: Any) -> Any:
        return found

    def release(self, group: int) -> None:
        self.released.append(group)

    calls: ClassVar[list[int]] = []
    torn = False


@pytest.mark.parametrize("kind", ["actor", "compiled-graph"])
@pytest.mark.parametrize(("chain", "answers"), [(True, 1), (False, 3)])
def test_actors_are_wired_by_the_pattern(kind: str, chain: bool, answers: int) -> None:
    ray: Any = FakeRay()
    FakeRay.calls.clear()
    with actors.Actors(ray, kind, 3, 100, chain=chain) as found:
        assert found.exchange(b"x") == [b"x"] * answers
        assert FakeRay.calls == [0, 1, 2]
        assert ray.released == []
    assert ray.released == [3]
    assert ray.torn == (kind == "compiled-graph")


def test_a_cluster_without_room_is_an_error() -> None:
    ray: Any = FakeRay()
    with pytest.raises(PenstockError, match="no 9 free CPUs"):
        actors.Actors(ray, "actor", 9, 100, chain=True).__enter__()
    assert ray.released == [9]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that answer at once, by a clock on which an actor call takes 8 s, others 2 s."""
    now = [0.0]

    class Joined:
        def close(self) -> None: ...

    class Instant:
        def __init__(self, *given: Any, chain: bool) -> None:
            kind, count = given[1:3] if isinstance(given[0], Joined) else given[:2]
            self.seconds = 8.0 if kind == "actor" else 2.0
            self.answers = 1 if chain else count

        def __enter__(self) -> Instant:
            return self

        def __exit__(self, *_: object) -> None: ...

        def exchange(self, message: bytes) -> list[bytes]:
            now[0] += self.seconds
            return [message] * self.answers

    monkeypatch.setattr(command, "Workers", Instant)
    monkeypatch.setattr(command, "Actors", Instant)
    monkeypatch.setattr(command, "join_cluster", lambda *_: Joined())
    monkeypatch.setattr(command, "find_spec", lambda _: object())
    monkeypatch.setattr(command, "machine", dict)
    monkeypatch.setattr(command, "time", SimpleNamespace(perf_counter=lambda: now[0]))


def test_the_table_has_each_channel_beside_calls(
    played: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    words = ["--sizes", "1", "4KiB", "--workers", "3", "--output-json", str(file)]
    assert main(["bench", "channels", *words]) == 0
    printed = capsys.readouterr().out
    assert printed.count("4.0x  ring") == printed.count("4.0x  stream") == 6
    assert printed.count("1.0x  actor") == 6
    measured = json.loads(file.read_text())["measured"]
    assert len(measured) == 3 * 2 * 4
    by = {(one["pattern"], one["channel"], one["size"]): one for one in measured}
    assert by["round-trip", "ring", 4096]["bytes_per_s"] == 2 * 4096 / 2.0
    assert by["scatter-gather", "ring", 4096]["bytes_per_s"] == 6 * 4096 / 2.0
    assert by["chain", "actor", 4096]["bytes_per_s"] == 4 * 4096 / 8.0


def test_what_cannot_be_measured_is_skipped_with_the_reason(
    played: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--sizes", "1", "--far", "ssh host", "--far-address", "198.51.100.2"]
    assert main(["bench", "channels", *words]) == 1
    printed, said = capsys.readouterr()
    assert "stream" in printed
    assert "skipped: ring: shared memory ends at the host" in said
    assert "skipped: actor: --far does not move actors: give --ray-address" in said
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert main(["bench", "channels", "--channels", "actor"]) == 1
    assert "Ray is not installed: pip install 'penstock[ray]'" in capsys.readouterr().err
    assert main(["bench", "channels", "--far", "ssh host"]) == 2
    assert "--far-address" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "channels", "--sizes", "0"])


@pytest.mark.heavy
def test_streams_join_two_namespaces(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        far, (here, there) = " ".join(hosts.inside(1)), hosts.addresses
        words = ["--channels", "stream", "--sizes", "1", "100KB", "--seconds", "0.05"]
        words += ["--far", far, "--address", here, "--far-address", there, "--workers", "2"]
        kept = tmp_path / "kept.json"
        words += ["--output-json", str(kept)]
        done = subprocess.run(
            [*hosts.inside(0), sys.executable, "-m", "penstock", "bench", "channels", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG,
        )
        assert done.returncode == 0, done.stderr
        assert hosts.received(1) > 3 * 5 * 100_000
    assert len(json.loads(kept.read_text())["measured"]) == 3 * 2
