"""What `make test-torch-oldest` installs is what pyproject.toml promises; what the code uses of
torch and Triton is there. That run takes long and is no part of `make test`.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.project import tree

NAMES = tree.REPOSITORY / "tests/backends/torch/names.txt"
USERS = ("python/penstock/", "benchmarks/gpu/")


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    project = tomllib.loads((tree.REPOSITORY / "pyproject.toml").read_text())["project"]
    promised = [each.split(",")[0] for each in project["optional-dependencies"]["cuda"]]
    pins = (tree.REPOSITORY / "constraints-oldest.txt").read_text().splitlines()
    for least in promised:
        name, version = least.split(">=")
        pattern = rf"{name}=={re.escape(version)}(\.[0-9]+)*"
        assert any(re.fullmatch(pattern, pin) for pin in pins), least


def test_all_names_of_torch_and_triton_are_those_that_the_oldest_has() -> None:
    """A new one belongs in the file when `make test-torch-oldest` has found it."""
    used = {
        name
        for path in tree.sources(".py")
        if tree.relative(path).startswith(USERS)
        for name in names(path)
    }
    listed = NAMES.read_text().split()
    assert sorted(used - set(listed)) == []
    assert listed == sorted(used)


def names(path: Path) -> Iterator[str]:
    """Dotted names of torch and Triton in a Python file: imports, and attributes of modules."""
    modules = imported(path)
    yield from modules.values()
    found = [node for node in tree.syntax(path) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in found}
    for node in found:
        first, *rest = ast.unparse(node).split(".")
        if id(node) not in inner and first in modules and all(map(str.isidentifier, rest)):
            yield ".".join([modules[first], *rest])


def imported(path: Path) -> dict[str, str]:
    """Modules of torch and Triton, and what is imported from them, by the names in the file."""
    # Which `kernels/language.py` hands on.
    found = {"tl": "triton.language"}
    for node in tree.syntax(path):
        if isinstance(node, ast.ImportFrom) and of_torch(node.module or ""):
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                each.asname or each.name: each.name for each in node.names if of_torch(each.name)
            }
    return found


def of_torch(module: str) -> bool:
    return module.split(".")[0] in ("torch", "triton")
