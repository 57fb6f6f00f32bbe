"""Things that must not be in the repository, or only in one place."""

import ast
import re
from pathlib import Path

import pytest

from tests.project import tree

# Crates with `unsafe`, and what they need it for. Clippy checks the SAFETY comments.
UNSAFE = {
    "kernels": "SIMD intrinsics, aligned buffers and the thread pool",
    "memory": "mapping memory and touching it ahead",
    "collectives": "shared memory and futexes",
    "checkpoint": "memory-mapping checkpoints",
    "kvstore": "slices of the RAM tier's and of lent memory, reads and writes of scattered blocks",
    "native": "buffers of Python as pools of KV blocks",
    "engine-client": "calls of libc: signals and the death of the parent",
}
# Temporary directories too.
# Triton's cache is there in a container whose HOME is /tmp.
MACHINE_PATH = re.compile(
    r"(?<![\w.$}~*-])/(?:work|root|tmp(?!/\.triton/)|home/[a-z]\w*|Users/\w+)/"
)
# Written so that this file does not match itself.
UNFINISHED = re.compile(r"\b(?:T[O]DO|F[I]XME|X[X]X)\b|\b(?:t[o]do|unimplemente[d])!\(")
RUST_ENVIRONMENT = re.compile(r"\benv::(?:var|vars|var_os|vars_os)\b")
ENVIRONMENT_READERS = {"environ", "environb", "getenv", "getenvb"}


def texts() -> dict[str, str]:
    """Tracked text files by name; the license is not ours to judge."""
    found = {}
    for path in tree.tracked():
        try:
            found[tree.relative(path)] = path.read_text()
        except UnicodeDecodeError:
            continue
    found.pop("LICENSE", None)
    return found


def reads_environment(path: Path) -> list[int]:
    """Lines of a Python file that touch the process environment."""
    lines = []
    for node in tree.syntax(path):
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_READERS:
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            lines += [node.lineno for alias in node.names if alias.name in ENVIRONMENT_READERS]
    return lines


def test_only_the_config_room_reads_the_environment() -> None:
    wrong = [
        f"{tree.relative(path)}:{line}"
        for path in tree.package_sources()
        if tree.room(path) != "config"
        for line in reads_environment(path)
    ]
    shipped = (
        path
        for path in tree.sources(".rs")
        if "/src/" in tree.relative(path) and path.stem != "testing"
    )
    wrong += [
        tree.relative(path) for path in shipped if RUST_ENVIRONMENT.search(tree.shipped_rust(path))
    ]
    assert not wrong


def test_unsafe_code_stays_in_its_crates() -> None:
    wrong = [
        tree.relative(path)
        for path in tree.sources(".rs")
        if "/src/" in tree.relative(path)
        and tree.crate(path) not in UNSAFE
        and re.search(r"\bunsafe\b (?:\{|fn|impl)", tree.shipped_rust(path))
    ]
    assert not wrong


def test_no_path_of_a_particular_machine_is_tracked() -> None:
    wrong = {
        name: [line for line in text.splitlines() if MACHINE_PATH.search(line)][:3]
        for name, text in texts().items()
        if MACHINE_PATH.search(text)
    }
    assert not wrong


def test_nothing_is_left_unfinished() -> None:
    sources = {
        name: text
        for name, text in texts().items()
        if name.endswith((".py", ".rs", ".sh", "Makefile"))
    }
    assert not [name for name, text in sources.items() if UNFINISHED.search(text)]


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_constraints_are_exact_and_name_no_index(name: str) -> None:
    lines = (tree.REPOSITORY / name).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert not [
        pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", pin)
    ]
