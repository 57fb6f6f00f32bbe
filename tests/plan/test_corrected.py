"""Predictions corrected by measured deployments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from tests.plan.conftest import read

ASKED = ["--isl", "500", "--osl", "50", "--rate", "4", "--requests", "60"]
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(directory: Callable[..., Path], tmp_path: Path) -> Plan:
    """`plan(*words)`: of Qwen3-32B on H100."""

    def make(*words: str) -> dict[str, Any]:
        output = tmp_path / "plan.yaml"
        path = str(directory("Qwen/Qwen3-32B"))
        assert (
            main(["plan", path, "--on", "h100-sxm-80gb:4", *ASKED, *words, "-o", str(output)]) == 0
        )
        return read(output)

    return make


def result(plan: dict[str, Any], factor: float, wait: float, **changes: object) -> dict[str, Any]:
    """As a server would give that is slower by `factor`, whose first tokens wait `wait` ms."""
    predicted = plan["predictions"]
    middle = predicted["median_tpot_ms"]["mid"]
    least = predicted["median_ttft_ms"]["at_least"] / predicted["band"]["low"]
    return {
        "mean_tpot_ms": middle * factor,
        "median_ttft_ms": least * factor + wait,
        "penstock": {"plan": {**plan, **changes}},
    }


def test_a_measured_deployment_moves_predictions(plan: Plan, tmp_path: Path) -> None:
    first = plan()
    path = tmp_path / "results.json"
    rows = [result(first, factor, 300.0) for factor in (1.25, 1.3, 1.35)]
    path.write_text("\n".join(map(json.dumps, rows)))
    second = plan("--calibrate", str(path))
    before, after = (each["predictions"]["median_tpot_ms"]["mid"] for each in (first, second))
    assert after / before == pytest.approx(1.3, rel=0.03)
    assert second["predictions"]["band"]["high"] < first["predictions"]["band"]["high"]
    # 300 ms in the queue, in HTTP and before the first step, which no step explains.
    assert second["predictions"]["median_ttft_ms"]["mid"] > 300
    assert "3 measured runs" in second["sources"][1]


def test_runs_that_disagree_widen_the_band(plan: Plan, tmp_path: Path) -> None:
    first = plan()
    path = tmp_path / "results.json"
    path.write_text("\n".join(json.dumps(result(first, f, 0.0)) for f in (1.0, 1.0, 2.0)))
    band = plan("--calibrate", str(path))["predictions"]["band"]
    assert band["high"] == pytest.approx(2.0, rel=0.02)
    assert band["low"] == pytest.approx(1 / band["high"])


def test_a_bound_on_the_first_token_counts_what_was_measured(
    plan: Plan, directory: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(result(plan(), 1.0, 3000.0)))
    words = ["plan", str(directory("Qwen/Qwen3-32B")), "--on", "h100-sxm-80gb:4", *ASKED]
    bound = ["--slo", "p99_ttft_ms:2000"]
    assert main([*words, *bound]) == 0
    assert main([*words, *bound, "--calibrate", str(path)]) == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "is none of `penstock bench plan`"),
        ({"target": {"accelerator": "l4-24gb"}}, "another accelerator: l4-24gb"),
        ({"model": {"sha256": "0", "weights": "bf16"}}, "another model: 0"),
    ],
)
def test_results_of_something_else_are_refused(
    plan: Plan,
    directory: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    row: dict[str, Any],
    said: str,
) -> None:
    found = result(plan(), 1.0, 0.0, **row) if row else {"mean_tpot_ms": 1.0}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(found))
    model = str(directory("Qwen/Qwen3-32B"))
    words = ["--on", "h100-sxm-80gb:4", *ASKED, "--calibrate", str(path)]
    assert main(["plan", model, *words]) == 1
    assert said in capsys.readouterr().err
