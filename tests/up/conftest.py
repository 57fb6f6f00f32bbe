"""A tiny model, and a plan of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock_ops.plan import profile
from tests.grammar import vocabulary
from tests.real_ranks import TINY
from tests.up.plans import LOAD, RATES


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, which plans take to have RATES."""
    monkeypatch.setattr(profile, "measure", lambda _subject, _said, _seconds: RATES)
    shutil.copytree(TINY / "llama", tmp_path / "llama")
    vocabulary.write_tokenizer(tmp_path / "llama", {})
    return tmp_path / "llama"


@pytest.fixture
def plan(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.yaml"
    words = ["plan", str(model), "--measure", *LOAD, "--slo", "p99_tpot_ms:100"]
    assert main([*words, "-o", str(path)]) == 0
    capsys.readouterr()
    return path
