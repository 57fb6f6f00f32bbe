"""The examples of docs/deploy.md, run as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.deploy.conftest import HERE

DOCUMENT = Path(__file__).parents[2] / "docs/deploy.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = [line for language, block in BLOCKS if not language for line in block.splitlines()]

IN_A_CLUSTER = tuple(f"penstock deploy {word} " for word in ("apply", "diff", "status", "delete"))
"""Run by tests/deploy/cluster."""


def test_the_examples_run_one_after_the_other(
    plan: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(plan(HERE), "plan.yaml")
    own = [line for line in EXAMPLES if not line.startswith(IN_A_CLUSTER)]
    assert len(own) >= 5
    for line in own:
        program, *words = shlex.split(line)
        assert program == "penstock"
        assert main(words) == 0
