"""Print what a change affects, for `make check`: crates, or directories of Python tests.

usage: affected.py rust|python. The change is what differs from the merge base with main. It affects
the rooms that it touches and those that may import them (tests/project/arrows.py). Without a
change, all are printed.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.project import arrows  # noqa: E402

# A change of these affects everything.
EVERYWHERE = ("Cargo.", "constraints", "pyproject", "python/penstock/core", "tests/conftest.py")
# Tests that run whatever has changed: they read all files.
ALWAYS = "tests/project"


def changed_files() -> list[str]:
    """Paths of the files that differ from the merge base with main, and of untracked ones."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines()

    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    return [*git("diff", "--name-only", base[0]), *git("ls-files", "-o", "--exclude-standard")]


def room(path: str) -> str | None:
    """The room of a source file: a crate, or a Python package as arrows.py names it."""
    words = path.removesuffix(".py").split("/")
    match words:
        case ["crates", "native", *_]:
            return "native"
        case ["crates", _, crate, *_]:
            return crate
        case ["python", "penstock", name, *_]:
            return name
        case ["python", package, name, *_]:
            return f"{package}.{name}"
    return None


def affected(changed: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
    """`changed` and the rooms that use one of them, directly or not."""
    found = set(changed)
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return found


def python_uses() -> dict[str, set[str]]:
    """The rooms that each Python room may use; those that call the extension use all crates."""
    uses = {name: used | arrows.OPEN for name, used in arrows.PYTHON.items()}
    for name in arrows.NATIVE & uses.keys():
        uses[name] = uses[name] | {"native"}
    return {**arrows.RUST, **uses}


def imported(directory: Path) -> set[str]:
    """The rooms that the tests in a directory import."""
    names = set()
    for file in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {f"python/{name.replace('.', '/')}" for name in names if name.startswith("penstock")}
    rooms = {room(path) for path in paths} - {None}
    return {"native" if name == "_native" else name for name in rooms if name}


def rust_words(files: list[str]) -> list[str]:
    """The affected crates that have tests, by name."""
    changed = {name for file in files if file.startswith("crates/") and (name := room(file))}
    crates = affected(changed, arrows.RUST) if files else set(arrows.RUST)
    return [f"penstock-{crate}" for crate in sorted(crates - {"native"})]


def python_words(files: list[str]) -> list[str]:
    """The directories whose tests are affected."""
    directories = [path for path in sorted((REPOSITORY / "tests").iterdir()) if path.is_dir()]
    changed = {name for file in files if (name := room(file))}
    rooms = affected(changed, python_uses())
    return [
        relative
        for directory in directories
        if (relative := f"tests/{directory.name}") == ALWAYS
        or not files
        or any(file.startswith(f"{relative}/") for file in files)
        or imported(directory) & rooms
    ]


def main() -> None:
    """Print the words for one language."""
    files = changed_files()
    if any(file.startswith(EVERYWHERE) for file in files):
        files = []
    words = {"rust": rust_words, "python": python_words}[sys.argv[1]](files)
    print(" ".join(words))


if __name__ == "__main__":
    main()
