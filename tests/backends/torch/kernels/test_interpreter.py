"""The kernels in Triton's interpreter against their references: what they compute, without a GPU.

The interpreter's products of bf16 are wrong, so f32 and f16 stand for it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

REPOSITORY = Path(__file__).parents[4]
LIMITS = {"f32": 2e-5, "f16": 3e-3}


def check(form: str, size: str) -> None:
    script = Path(__file__).with_name("interpreted.py")
    paths = os.pathsep.join([str(REPOSITORY), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, str(script), form, size],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    wrong = [(name, error) for name, error in errors if not error < LIMITS[form]]
    assert not wrong
    print(f"{len(errors)} calls, largest error {max(error for _, error in errors):.1e}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", LIMITS)
def test_kernels_compute_what_their_references_do(form: str) -> None:
    check(form, "quick")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", LIMITS)
def test_all_groups_of_heads(form: str) -> None:
    check(form, "full")
