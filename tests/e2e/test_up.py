"""`penstock up` with the default model: a plan, its server, its load, one verdict, nothing left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_ops.plan import profile
from penstock_ops.plan.profile import Profile

# No speed is asserted: machines that run tests are busy.
RATES = Profile(decodes=((1, 0.02), (8, 0.09)), chunks=((16, 0.04), (256, 0.64)), key=1e-7, pair=0)
LIMITS = "p99_tpot_ms:600000,p99_ttft_ms:600000"
LOAD = ["--rate", "4", "--isl", "16", "--osl", "4", "--requests", "4", "--slo", LIMITS]


def test_a_plan_is_proven_on_this_machine(
    model_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(profile, "measure", lambda _subject, _said, _seconds: RATES)
    monkeypatch.setattr("penstock_ops.up.causes.BUSY", 1.0)
    # Settings of other servers are no part of the plan.
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    plan, report, kept = (tmp_path / name for name in ("plan.yaml", "up.json", "results.json"))
    assert main(["plan", str(model_file), "--measure", *LOAD, "-o", str(plan)]) == 0
    words = ["--model", str(model_file), "--checks", "limits,storage", "--json", str(report)]
    status = main(["up", str(plan), *words, "--calibrate", str(kept)])
    printed = capsys.readouterr()
    found = json.loads(report.read_text())
    assert status == {"holds": 0, "does not hold": 1}[found["verdict"]], printed.out
    failed = {each["check"] for each in found["findings"] if each["status"] == "fail"}
    assert failed <= {"start", "storage", "limits"}, "what a busy machine may miss"
    assert found["run"]["completed"] == 4
    assert found["run"]["preemptions"] == 0
    assert 0 < found["run"]["step_seconds"] < 600
    assert all(each["measured"] > 0 for each in found["statistics"].values())
    measured = {each["check"] for each in found["findings"] if each["measured"] is not None}
    assert {"start", "requests", "queue", "tpot", "ttft", "e2el", "throughput"} <= measured
    assert json.loads(kept.read_text())["penstock"]["plan"]["model"]["name"] == model_file.stem
    (port,) = [word for word in found["run"]["command"] if word.startswith("--port=")]
    assert serving(port) == []


def serving(word: str) -> list[str]:
    """Processes of this machine that have `word` in their command."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(pid)
    return found
