"""`bench plan`: the load that a plan names, its predictions beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock_lab.bench import client
from tests.bench.servers import serving_model
from tests.fakes.load import PlayedRun

PLAN: dict[str, Any] = {
    "schema": 1,
    "model": {"name": "m"},
    "bench": {"isl": 8, "osl": 4, "rate": 50.0, "requests": 6, "seed": 1, "slo": []},
    "predictions": {
        "median_tpot_ms": {"low": 8.0, "mid": 10.0, "high": 12.0},
        "p99_ttft_ms": {"unknown": True, "at_least": 3.0},
        "output_tokens_per_s": 100.0,
    },
}


@pytest.fixture
def server() -> Iterator[str]:
    with serving_model(root="org/m", max_model_len=64) as url:
        yield url


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[PlayedRun]:
    """Loads on a server that answers the first token after 50 ms and others each 10 ms."""
    found: list[PlayedRun] = []

    def open_run(description: str) -> PlayedRun:
        found.append(PlayedRun(description))
        return found[-1]

    monkeypatch.setattr(client, "native_run", open_run)
    return found


IDS = ["--prompt-ids", "--vocab-size", "1000"]


def written(tmp_path: Path, **bench: object) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump({**PLAN, "bench": {**PLAN["bench"], **bench}}))
    return str(path)


@pytest.mark.usefixtures("runs")
def test_predicted_beside_measured(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, slo=["p99_tpot_ms:50"])
    words = [*IDS, "--base-url", server, "--save-result", "--result-dir", str(tmp_path)]
    assert main(["bench", "plan", path, *words, "--result-filename", "r.json"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "10.00" in rows["median_tpot_ms"]
    assert "8 to 12" in rows["median_tpot_ms"]
    assert "within the band" in rows["median_tpot_ms"]
    assert "unknown" in rows["p99_ttft_ms"]
    assert "bound 50 holds" in rows["p99_tpot_ms"]
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["completed"] == 6
    assert kept["penstock"]["plan"]["predictions"] == PLAN["predictions"]


@pytest.mark.usefixtures("runs")
def test_a_bound_that_falls_is_the_exit_status(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, slo=["p95_tpot_ms:9"])
    assert main(["bench", "plan", path, *IDS, "--base-url", server]) == 1
    assert "p95_tpot_ms 10.00 > 9" in capsys.readouterr().out


def test_arrivals_of_a_trace_are_replayed(
    server: str, tmp_path: Path, runs: list[PlayedRun]
) -> None:
    trace = tmp_path / "trace.jsonl"
    row = '{{"timestamp": {}, "input_length": 9, "output_length": 2, "hash_ids": [1]}}\n'
    trace.write_text("".join(row.format(at * 250) for at in range(5)))
    path = tmp_path / "plan.yaml"
    bench = {"trace": str(trace), "requests": 3, "slo": []}
    path.write_text(yaml.safe_dump({**PLAN, "bench": bench}))
    assert main(["bench", "plan", str(path), *IDS, "--base-url", server]) == 0
    assert runs[-1].now >= 0.5


def test_another_file_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("schema: 2\n")
    assert main(["bench", "plan", str(path)]) == 1
    assert "not a plan of schema 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("bench", "isl"), "1", "bench.isl is '1', expected a whole number"),
        (("bench", "rate"), None, "bench.rate is None, expected a number"),
        (("bench", "slo"), "p99_tpot_ms:1", "bench.slo is 'p99_tpot_ms:1', expected a list"),
        (("bench",), [], "bench is [], expected a mapping"),
        (("predictions",), None, "predictions is None, expected a mapping"),
        (("predictions", "p99_tpot_ms"), 5, "predictions.p99_tpot_ms is 5, expected a mapping"),
    ],
)
def test_a_plan_of_another_form_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: tuple[str, ...],
    value: object,
    said: str,
) -> None:
    band = {"low": 1.0, "mid": 2.0, "high": 3.0}
    load = {"isl": 8, "osl": 4, "rate": 1.0, "requests": 2, "seed": 0, "slo": []}
    plan = {"schema": 1, "bench": load, "predictions": {"p99_tpot_ms": band}}
    at: dict[str, object] = plan
    for key in path[:-1]:
        at = at[key]  # type: ignore[assignment]
    at[path[-1]] = value
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    assert main(["bench", "plan", str(file)]) == 1
    assert f"{file}: {said}" in (told := capsys.readouterr().err)
    assert "make the plan again" in told
