"""The heartbeat of a node's agent, and the probe that reads it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config.machine import free_port
from penstock.executor.nodes import heartbeat
from penstock.executor.nodes.heartbeat import Heartbeat, heartbeats
from tests.e2e.server import eventually
from tests.limits import HANG


def test_the_age_is_that_of_the_last_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(heartbeat, "since_boot", lambda: now)
    first, second = Heartbeat(tmp_path, 1), Heartbeat(tmp_path, 12)
    now += 40
    assert list(heartbeats(tmp_path)) == [(1, 40.0), (12, 40.0)]
    second.beat()
    now += 5
    assert list(heartbeats(tmp_path)) == [(1, 45.0), (12, 5.0)]
    first.close()
    assert list(heartbeats(tmp_path)) == [(12, 5.0)]
    second.close()
    assert not list(tmp_path.iterdir())


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "penstock-node-1.heartbeat").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Heartbeat(tmp_path, 1)
    assert victim.read_text() == "precious"


def test_a_file_that_is_no_heartbeat_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "penstock-node-1.heartbeat").write_text("")
    (tmp_path / "penstock-node-2.heartbeat").write_bytes(b"\xff")
    assert not list(heartbeats(tmp_path))


def test_the_probe_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["node-health"]) == 1
    assert "no heartbeat of a node other than 0" in capsys.readouterr().err
    alive = Heartbeat(tmp_path, 1)
    assert main(["node-health"]) == 0
    assert main(["node-health", "--node-rank", "2"]) == 1
    assert "no heartbeat of a node 2" in capsys.readouterr().err
    assert main(["node-health", "--max-age", "-1"]) == 1
    assert "node 1: heartbeat" in capsys.readouterr().out
    alive.close()


def test_an_agent_that_hangs_has_a_stale_heartbeat(
    tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real agent, whose node 0 is not there: alive all the same. Stopped by SIGSTOP: stale."""
    master = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_CLUSTER_TOKEN", "a secret of some length")
    flags = ["-pp", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", master]

    def probe() -> bool:
        return main(["node-health", "--max-age", "4"]) == 0

    command = [sys.executable, "-m", "penstock", "serve", str(model_file), *flags]
    agent = subprocess.Popen(command)
    try:
        eventually(probe, "a heartbeat")
        agent.send_signal(signal.SIGSTOP)
        eventually(lambda: not probe(), "a stale heartbeat")
        agent.send_signal(signal.SIGCONT)
        eventually(probe, "a heartbeat again")
        agent.terminate()
        assert agent.wait(HANG) == 0
    finally:
        agent.kill()
        agent.wait()
    assert not probe()
    assert not list(tmp_path.iterdir())
