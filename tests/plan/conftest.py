"""Models to plan for: directories with nothing but a config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_ops.plan.catalogue import entries
from penstock_ops.plan.subject import Subject, read_subject

CONFIGS = {name: entry.config for name, entry in entries().items()}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}

Model = Callable[..., Subject]


def read(path: Path) -> Any:
    """A plan, by a reader of YAML that is not ours."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def directory(tmp_path: Path) -> Callable[..., Path]:
    """`directory(name, key=value)`: a published model's config.json with more keys."""

    def write(name: str, **keys: object) -> Path:
        made = tmp_path / name.rpartition("/")[2]
        made.mkdir(exist_ok=True)
        (made / "config.json").write_text(json.dumps({**CONFIGS[name], **keys}))
        return made

    return write


@pytest.fixture
def model(directory: Callable[..., Path]) -> Model:
    """`model(name, weights)`: what planning reads of it."""

    def read(name: str, weights: str | None = None, **keys: object) -> Subject:
        return read_subject(str(directory(name, **keys)), weights)

    return read


R1 = "deepseek-ai/DeepSeek-R1"
