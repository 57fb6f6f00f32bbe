"""`penstock up` in this process, with a program in place of the server and of the benchmark: the
way to the verdict, and that nothing is left over.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock_lab.bench import planned
from penstock_ops.up import command
from penstock_ops.verify.finding import Layer, Status
from penstock_ops.verify.verdict import verdict
from tests.processes import is_alive
from tests.up.plans import LOAD, result, verified

STAND_IN = Path(__file__).with_name("stand_in.py")
LIGHT = ["--checks", "limits,huge-pages"]


class Runs:
    """`runs(mode, load)`: the stand-in in `mode` for the server, `load` for the benchmark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._patch = monkeypatch
        self._pids = tmp_path / "pids"

    def __call__(self, mode: str, load: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        def own(_settings: object, port: int, _metrics_port: int) -> list[str]:
            return [sys.executable, "-S", "-E", str(STAND_IN), mode, str(port), str(self._pids)]

        # One port: the stand-in serves its metrics where it serves the rest.
        port = free_port()
        self._patch.setattr(command, "local_command", own)
        self._patch.setattr(command, "free_port", lambda: port)
        self._patch.setattr(planned, "measure_plan", lambda plan, _parsed: load(plan))

    def living(self) -> list[int]:
        """Which of the stand-in's processes still run; none if it was ended before it began."""
        if not self._pids.exists():
            return []
        return [int(text) for text in self._pids.read_text().split() if is_alive(int(text))]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return Runs(monkeypatch, tmp_path)


def up(plan: Path, *words: str) -> int:
    checks = [] if "--checks" in words else LIGHT
    return main(["up", str(plan), *words, *checks, "--model", str(plan.parent / "llama")])


def test_a_plan_that_holds(
    plan: Path, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs("ready", lambda plan: result(plan, 1.0))
    report = tmp_path / "up.json"
    assert up(plan, "--json", str(report)) == 0
    printed = capsys.readouterr().out
    assert "within the band" in printed
    assert "plan.yaml (llama): holds; " in printed.splitlines()[-1]
    found = json.loads(report.read_text())
    assert found["verdict"] == "holds"
    measured = found["statistics"]["p99_tpot_ms"]
    assert measured["limit"] == 100
    assert measured["measured"] == measured["predicted"]["mid"]
    # 8 s in the queue of a run of 16 s; the counter that did not grow.
    assert found["run"]["waiting"] == 0.5
    assert found["run"]["preemptions"] == 0
    assert found["run"]["step_seconds"] == pytest.approx(0.020)
    assert runs.living() == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_plan_that_does_not_hold_names_the_layer_last(
    plan: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # This machine has other programs while tests run.
    monkeypatch.setattr("penstock_ops.up.causes.BUSY", 1.0)
    runs("ready", lambda plan: result(plan, 6.0))
    assert up(plan) == 1
    *_, conclusion, layer, cause = capsys.readouterr().out.splitlines()
    assert "does not hold; 1 fail" in conclusion
    assert layer.startswith("engine, ")
    assert "times the limit" in layer
    assert "between tokens pass outside the engine's steps" in cause
    assert runs.living() == []


def test_what_was_measured_corrects_the_next_plan(
    plan: Path, model: Path, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs("ready", lambda plan: result(plan, 1.5))
    kept, corrected = tmp_path / "results.json", tmp_path / "corrected.yaml"
    for _ in range(2):
        up(plan, "--calibrate", str(kept))
    assert "TPOT is 1.5 times the prediction" in capsys.readouterr().err
    assert len(kept.read_text().splitlines()) == 2
    words = ["plan", str(model), "--measure", *LOAD, "--calibrate", str(kept)]
    assert main([*words, "-o", str(corrected)]) == 0
    first, second = (yaml.safe_load(path.read_text()) for path in (plan, corrected))
    ratio = second["predictions"]["median_tpot_ms"]["mid"]
    # As far as mean and median of the prediction agree.
    assert ratio / first["predictions"]["median_tpot_ms"]["mid"] == pytest.approx(1.5, rel=0.2)


@pytest.mark.parametrize(
    ("mode", "said"),
    [("never", "it was not ready after 3 s"), ("ends", "ended with status 7")],
)
def test_a_server_that_does_not_start_is_a_verdict_and_leaves_its_log(
    plan: Path,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: str,
    said: str,
) -> None:
    runs(mode, lambda plan: result(plan, 1.0))
    if mode == "never":
        monkeypatch.setattr(command, "PATIENCE", 0.05)  # Of 60 s.
    assert up(plan, "--keep") == 1
    printed = capsys.readouterr().out
    assert "the server did not start: " in printed
    assert said in printed
    assert "does not hold; 1 fail" in printed
    (log,) = Path(tempfile.gettempdir()).glob("penstock-up-*/server.log")
    assert str(log) in printed
    assert runs.living() == []


def terminated(_plan: Mapping[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    raise AssertionError("the signal was lost")


def interrupted(_plan: Mapping[str, Any]) -> dict[str, Any]:
    raise KeyboardInterrupt


def partial(plan: Mapping[str, Any]) -> dict[str, Any]:
    return result(plan, 1.0, penstock={"failures": {}, "partial": True, "plan": plan})


def broken(_plan: Mapping[str, Any]) -> dict[str, Any]:
    raise PenstockError("no answer")


@pytest.mark.parametrize(
    ("load", "status"), [(terminated, 130), (interrupted, 130), (partial, 130), (broken, 1)]
)
def test_nothing_is_left_over(
    plan: Path, runs: Runs, load: Callable[..., dict[str, Any]], status: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    runs("ready", load)
    assert up(plan, "--keep") == status
    assert runs.living() == []
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_kept_server_is_named(plan: Path, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs("ready", lambda plan: result(plan, 9.0))
    assert up(plan, "--keep") == 1
    living = runs.living()
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    assert len(living) == 2
    assert f"process {living[0]}, log /" in capsys.readouterr().err


def test_a_port_in_use_says_nothing_of_the_plan(
    plan: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs("ready", lambda plan: result(plan, 1.0))
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert up(plan, "--port", str(other.getsockname()[1])) == 1
    found = capsys.readouterr()
    assert "something listens at" in found.err
    assert "hold" not in found.out


def test_without_its_devices_no_server_is_started(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = verified("devices", Layer.DEVICE, Status.FAIL)
    monkeypatch.setattr(command, "verify_here", lambda _checks, _needs: verdict([lost]))
    monkeypatch.setattr(command, "LocalServer", None)
    assert up(plan) == 1
    assert "device, n: devices is so" in capsys.readouterr().out


def replicas(plan: dict[str, Any]) -> None:
    plan["choice"]["replicas"] = 2


def of_vllm(plan: dict[str, Any]) -> None:
    plan["engine"] = "vllm"


def other_model(plan: dict[str, Any]) -> None:
    plan["model"]["parameters"] *= 2


def no_band(plan: dict[str, Any]) -> None:
    del plan["predictions"]["band"]


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (
            None,
            ["h1", "h2"],
            "2 HOSTs: the plan's tensor_parallel_size x pipeline_parallel_size is 1",
        ),
        (None, ["h1", "--keep"], "--keep is for this machine"),
        (replicas, ["h1"], "2 replicas: one is started on HOSTs"),
        (of_vllm, ["h1"], "the plan is for vllm: on hosts only Penstock is started"),
        (None, ["--port", "65536"], "--port"),
        (None, ["--checks", "limit"], "did you mean limits?"),
        (replicas, [], "2 replicas on 1 hosts each"),
        (other_model, [], "parameters, the plan's llama "),
        (no_band, [], "predictions.band is missing"),
    ],
)
def test_what_cannot_be_started_is_named(
    plan: Path,
    runs: Runs,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None] | None,
    words: list[str],
    said: str,
) -> None:
    if change:
        content = yaml.safe_load(plan.read_text())
        change(content)
        plan.write_text(yaml.safe_dump(content))
    assert up(plan, *words) in (1, 2)
    assert said in capsys.readouterr().err
