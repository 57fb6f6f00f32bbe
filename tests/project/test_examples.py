"""Python in the documents: it compiles, what it imports is there, and it runs where it can."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.grammar import vocabulary
from tests.real_ranks import TINY

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(REPOSITORY)}-{at}")
    for page in PAGES
    for at, code in enumerate(
        re.findall(r"^```py(?:thon)?\n(.*?)^```", page.read_text(), re.M | re.S)
    )
]


def example(page: str) -> str:
    text = (REPOSITORY / "docs" / page).read_text()
    return text.split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_compiles_and_its_imports_are_there(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert _is_there(alias.name), alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and _is_there(node.module):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def _is_there(name: str) -> bool:
    """A module of this project has to be; others are not all installed."""
    if name.partition(".")[0] == "penstock":
        assert importlib.util.find_spec(name), f"there is no {name}"
        return True
    return importlib.util.find_spec(name.partition(".")[0]) is not None


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_uses_nothing_that_it_does_not_name(code: str) -> None:
    if "import" not in code:
        pytest.skip("a fragment")
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    found = subprocess.run(words, input=code, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_the_backend_that_counts_runs() -> None:
    names: dict[str, Any] = {"__name__": "example"}
    code = compile(example("adding-a-backend.md"), "adding-a-backend.md", "exec")
    exec(code, names)  # noqa: S102
    assert names["CountingBackend"].free_memory(None) > 0


def test_the_offline_batch_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "llama"
    shutil.copytree(TINY / "llama", model)
    vocabulary.write_tokenizer(model, {})
    code = example("offline.md").replace('"smollm2"', repr(str(model)))
    exec(compile(code.replace("[504, 3575]", "[5, 7]"), "offline.md", "exec"), {})  # noqa: S102
    assert len(capsys.readouterr().out.splitlines()) >= 2
