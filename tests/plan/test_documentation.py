"""The examples of docs/plan.md, run as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from tests.plan.conftest import CONFIGS, FP8

DOCUMENT = Path(__file__).parents[2] / "docs/plan.md"
BLOCKS = re.findall(r"^```\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = [line for block in BLOCKS for line in block.replace("\\\n", "").splitlines()]
PLACES = {"Mixtral-8x22B": "mistralai/Mixtral-8x22B-v0.1"}


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8
    assert all(line.startswith("penstock plan ") for line in EXAMPLES)


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_runs(
    line: str,
    directory: Callable[..., Path],
    model_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    if words[1] == "smollm2":
        words[1] = str(model_file)
    else:
        names = (name for name in CONFIGS if name.endswith(f"/{words[1]}"))
        name = PLACES.get(words[1]) or next(names)
        words[1] = str(
            directory(name, **({"quantization_config": FP8} if "DeepSeek" in name else {}))
        )
    assert main(words) == 0
