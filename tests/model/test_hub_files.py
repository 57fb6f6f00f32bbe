"""Files of a Hugging Face repository that a download takes."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

from penstock.model.locate import from_hub

REPOSITORY = {
    "config.json": True,
    "generation_config.json": True,
    "tokenizer.json": True,
    "tokenizer_config.json": True,
    "tiktoken.model": True,
    "chat_template.jinja": True,
    "model.safetensors.index.json": True,
    "model-00001-of-00002.safetensors": True,
    "README.md": False,
    "tokenization_kimi.py": False,
    "pytorch_model.bin": False,
    "original/model.safetensors": False,
    "original/config.json": False,
    "metal/model.bin": False,
}
"""Names as in the repositories of Kimi-K2 and gpt-oss, and whether they are needed."""


def test_what_a_model_needs_is_downloaded_and_copies_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The hub's rule: a name is taken that fits a pattern of one list and none of the other."""

    def snapshot_download(
        name: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        assert (name, revision) == ("org/model", "main")
        for file in REPOSITORY:
            taken = any(fnmatch(file, pattern) for pattern in allow_patterns)
            if taken and not any(fnmatch(file, pattern) for pattern in ignore_patterns):
                (tmp_path / file).touch()
        return str(tmp_path)

    hub = ModuleType("huggingface_hub")
    hub.__dict__["snapshot_download"] = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    downloaded = {file.name for file in from_hub("org/model", "main").iterdir()}
    assert downloaded == {file for file, needed in REPOSITORY.items() if needed}
