"""benchmarks/gpu/run.py, dry: all of its parts end, from the source tree without the extension."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

REPOSITORY = Path(__file__).parents[4]


@pytest.mark.timeout(600)
def test_a_dry_run_measures_all_parts(tmp_path: Path) -> None:
    script = REPOSITORY / "benchmarks/gpu/run.py"
    command = [sys.executable, str(script), "--dry", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    logs = "".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + logs
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert all(row["right"] for row in found["correctness"]["cases"])
    assert not any("failures" in part for part in found.values())
    for name in ("Qwen3-8B", "Qwen3-30B-A3B"):
        assert found[name]["offline"][1]["output_tokens_per_s"] > 0
        assert found[name]["graphs draw the same tokens"] is True
    assert "### offline" in (tmp_path / "report.md").read_text()


def test_a_part_that_takes_too_long_is_stopped_and_failures_keep_their_status() -> None:
    from benchmarks.gpu.run import ended

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        assert ended(process, 0.2) == "stopped after 0 s"
        assert process.returncode is not None
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert ended(process, 60) == "failed with 3"
