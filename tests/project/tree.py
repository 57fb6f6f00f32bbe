"""The tracked files of the repository and what is in them."""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = REPOSITORY / "python"
RUST_FUNCTION = re.compile(
    r'^( *)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe|extern "C") )*fn (\w+)'
)
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]", re.MULTILINE)


class Function(NamedTuple):
    """A function or method: where it is and how many lines it takes, signature and docstring
    included.
    """

    where: str
    lines: int


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Absolute paths of the tracked files that exist."""
    try:
        command = ["git", "-C", str(REPOSITORY), "ls-files", "-z"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(
            f"not a git checkout, so it is unknown which files belong to the project: {error}"
        )
    paths = (REPOSITORY / name for name in listed.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def relative(path: Path) -> str:
    """`path` as seen from the root of the repository."""
    return path.relative_to(REPOSITORY).as_posix()


def sources(*suffixes: str) -> Iterator[Path]:
    """Tracked files with one of the suffixes."""
    return (path for path in tracked() if path.suffix in suffixes)


def package_sources() -> Iterator[Path]:
    """Tracked Python files of the wheel."""
    return (path for path in sources(".py") if path.is_relative_to(PYTHON))


def manifests() -> Iterator[Path]:
    """Cargo.toml of each crate."""
    crates = REPOSITORY / "crates"
    return (path for path in sources(".toml") if path.is_relative_to(crates))


def product(manifest: Path) -> str:
    """Product of a crate: the directory under crates/ in which it is."""
    return manifest.relative_to(REPOSITORY / "crates").parts[0]


def crate(path: Path) -> str:
    """Crate of a Rust file."""
    product, name, *_ = path.relative_to(REPOSITORY / "crates").parts
    return product if name == "src" else name


def room(path: Path) -> str:
    """Room of a file of the wheel: see `room_of`."""
    return room_of(module(path))


def module(path: Path) -> str:
    """Dotted name of a file of the wheel."""
    return path.relative_to(PYTHON).with_suffix("").as_posix().replace("/", ".")


def room_of(module: str) -> str:
    """Room of a module: in penstock the name after it, elsewhere with the package's before it."""
    package, _, rest = module.partition(".")
    name = rest.split(".")[0]
    return name if package == "penstock" else f"{package}.{name}"


def shipped_rust(path: Path) -> str:
    """Text of a Rust file without its test module, which by convention is at the end."""
    return TEST_MODULE.split(path.read_text(), maxsplit=1)[0]


@functools.cache
def syntax(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a Python file."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def python_functions(path: Path) -> Iterator[Function]:
    """Functions of a Python file."""
    for node in syntax(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield Function(
                f"{relative(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1
            )


def rust_functions(path: Path) -> Iterator[Function]:
    """Functions with a body of a Rust file, test module left out.

    Relies on rustfmt: a function ends at the first closing brace with the indentation of its `fn`.
    """
    lines = shipped_rust(path).splitlines()
    for number, line in enumerate(lines):
        if found := RUST_FUNCTION.match(line):
            indent, name = found.groups()
            length = _rust_length(lines[number:], indent)
            if length:
                yield Function(f"{relative(path)}:{number + 1} {name}", length)


def _rust_length(lines: list[str], indent: str) -> int:
    """Lines up to the end of the function that begins in `lines[0]`; 0 for a declaration without a
    body.
    """
    for count, line in enumerate(lines, start=1):
        if line == indent + "}" or (count == 1 and line.endswith("}")):
            return count
        if line.endswith(";") and line.startswith(
            (indent + ")", indent + "fn ", indent + "unsafe fn ")
        ):
            return 0
    return 0
