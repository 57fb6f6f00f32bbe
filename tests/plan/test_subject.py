"""Models read from nothing but config.json: the spec that they have with weights beside it, and why
some do not run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.model import load_model
from penstock.model.sizing import parameters
from penstock_ops.plan.subject import read_subject
from tests.model.test_published import READ, REFUSED, ROWS

SIZED = [name for name in REFUSED if "num_hidden_layers" in ROWS[name]["config"]]
"""Refused by what they ask for, with sizes all the same."""
UNKNOWN = "Llama-2-7B-GPTQ"
"""Its weights have no size that is known."""


def write(directory: Path, **files: Any) -> str:
    for name, contents in files.items():
        (directory / f"{name}.json").write_text(json.dumps(contents))
    return str(directory)


@pytest.mark.parametrize("name", READ)
def test_a_model_without_weights_is_the_same_model(tmp_path: Path, name: str) -> None:
    alone = read_subject(write(tmp_path, config=ROWS[name]["config"]))
    assert not alone.refused
    write(tmp_path, **{"model.safetensors.index": {"weight_map": {}}})
    assert alone.spec == load_model(tmp_path).spec


@pytest.mark.parametrize("name", [name for name in SIZED if name != UNKNOWN])
def test_what_no_backend_runs_says_by_which_key(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    beside = {key: row[key] for key in ("hf_quant_config",) if key in row}
    subject = read_subject(write(tmp_path, config=row["config"], **beside))
    assert re.search(rf"\b{row['refused']}( = |: )", subject.refused)


def test_a_type_that_is_no_text_is_none_that_is_known(tmp_path: Path) -> None:
    config = ROWS["Qwen/Qwen3-0.6B"]["config"] | {"architectures": ["A"], "model_type": ["foo"]}
    assert "no model of type \"['foo']\" has" in " ".join(
        read_subject(write(tmp_path, config=config)).notes
    )


@pytest.mark.parametrize("architecture", ["Qwen3Model", "Qwen3ForSequenceClassification"])
def test_models_without_a_head_run(tmp_path: Path, architecture: str) -> None:
    config = ROWS["Qwen/Qwen3-0.6B"]["config"] | {"architectures": [architecture]}
    assert not read_subject(write(tmp_path, config=config)).refused


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("openai-community/gpt2", 124_439_808), ("openai-community/gpt2-xl", 1_557_611_200)],
)
def test_gpt2_has_its_published_parameters(tmp_path: Path, name: str, numbers: int) -> None:
    """Its keys have other names than those of `published.jsonl`."""
    assert parameters(read_subject(write(tmp_path, config=ROWS[name]["config"])).spec) == numbers
