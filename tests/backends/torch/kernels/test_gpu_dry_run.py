"""benchmarks/gpu/run.py, dry: its parts end, and their results are in its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.gpu import kernels, run, server
from benchmarks.gpu.items import ABSENT, FAILURES
from benchmarks.gpu.loads import LARGE
from benchmarks.gpu.shapes import SHAPES

REPOSITORY = Path(__file__).parents[4]
# Each part imports torch. In a dry run, models that are left out here have the shape of one that is
# not, and FlashInfer is absent.
QUICK_PARTS = (
    *("correctness", "machine", "serve-Qwen3-0.6B", "Qwen3-0.6B", "serve-Qwen3-8B", "kernels"),
    *("tiers", "Qwen3-30B-A3B", "several", "tiles"),
)
ALL_PARTS = tuple(part.name for part in run.PARTS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "parts",
    [QUICK_PARTS, pytest.param(ALL_PARTS, marks=pytest.mark.slow)],
    ids=["quick parts", "all parts"],
)
def test_a_dry_run_measures_its_parts(tmp_path: Path, parts: tuple[str, ...]) -> None:
    script = REPOSITORY / "benchmarks/gpu/run.py"
    # An hour: on a busy machine no part ends at its limit.
    command = [sys.executable, str(script), "--dry", "--out", str(tmp_path), "--minutes", "60"]
    command += [] if parts == ALL_PARTS else ["--parts", *parts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    logs = "".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + logs
    written = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert list(written) == list(parts)
    found = {name: part["results"] for name, part in written.items()}
    names = [name for name, _ in kernels.tiny(None)]  # type: ignore[arg-type]
    assert all(row["right"] for row in found["correctness"]["cases"])
    assert sorted(row["case"] for row in found["correctness"]["cases"]) == sorted(names)
    assert [row["case"] for row in found["kernels"]["speeds"]] == names
    assert not any(FAILURES in part for part in found.values())
    for name in found.keys() & SHAPES:
        loops = found[name]["closed loops"]
        known = ["W2", "W3", "C128", "W1", "W4", "W5", "C256"]
        known = known[:2] + known[3:4] if name in LARGE else known
        assert [row["workload"] for row in loops] == known
        assert all(row["output_tokens_per_s"] > 0 for row in [*loops, *found[name]["offline"]])
        assert found[name]["graphs draw the same tokens"] is True
        assert found[name]["first token after s"] > 0
    check_server(found["serve-Qwen3-0.6B"])
    assert ABSENT in found["serve-Qwen3-8B"]
    assert found["several"]["ranks"] == 2
    assert found["several"]["offline"][0]["output_tokens_per_s"] > 0
    assert all(row["right"] is not False for row in found["tiers"]["copies"])
    text = (tmp_path / "report.md").read_text()
    assert "### closed loops" in text
    assert "no numbers of a GPU" in text
    assert "### goals" not in text
    assert "### the product's server beside the loop" in text


def check_server(found: dict[str, Any]) -> None:
    """A dry run serves wherever the extension is."""
    assert server.NOT_SERVED not in found
    assert [row["compiled_kernels"] for row in found[server.STARTS]] == [server.COLD, server.WARM]
    assert all(0 < row["ready_s"] < row["first_token_s"] for row in found[server.STARTS])
    assert [row["workload"] for row in found[server.RUNS]] == list(server.DRY_ORDER)
    assert all(row["output_tokens_per_s"] > 0 for row in found[server.RUNS])
    assert any("weights loaded" in row["line"] for row in found[server.LOG])
