"""Print what a change affects, for `make check`: crates, or files of Python tests.

usage: affected.py rust|python. The change is what differs from the merge base with main. It affects
the crates that may use one that it touches, and the files that import one that it touches. Imports
of Python in functions do not count, so `make test` has the last word. Without a change, all are
printed.
"""

import functools
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.project import arrows, tree  # noqa: E402
from tests.project.python_modules import Files, dotted  # noqa: E402

# A change of these affects everything.
EVERYWHERE = ("Cargo.", "constraints", "pyproject", "tests/conftest.py")
# Tests that read all files.
ALWAYS = "tests/project"
# The name that stands for all crates in the graph of Python files.
NATIVE = "penstock._native"


def changed_files() -> list[str]:
    """Paths of the files that differ from the merge base with main, and of untracked ones."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines()

    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    return [*git("diff", "--name-only", base[0]), *git("ls-files", "-o", "--exclude-standard")]


def affected(changed: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
    """`changed`, and all that use one of them, directly or not."""
    found = set(changed)
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return found


def crates(files: list[str]) -> list[str]:
    """Names of the affected crates that have tests."""
    changed = {Path(file).parts[2] for file in files if file.startswith("crates/")}
    names = affected(changed, arrows.RUST) if files else set(arrows.RUST)
    return [f"penstock-{name}" for name in sorted(names & arrows.RUST.keys() - {"native"})]


def tests(files: list[str]) -> list[str]:
    """The affected files of Python tests, and the directory of tests that read all files."""
    every = {dotted(path, REPOSITORY): path for path in (REPOSITORY / "tests").rglob("test_*.py")}
    names = affected(changed_modules(files), python_uses()) if files else every.keys()
    chosen = {
        path.relative_to(REPOSITORY).as_posix() for name, path in every.items() if name in names
    }
    return [ALWAYS, *sorted(path for path in chosen if not path.startswith(ALWAYS))]


def changed_modules(files: list[str]) -> set[str]:
    """Dotted names of changed Python files; a file beside tests counts as its whole directory."""
    names = {NATIVE} if any(file.startswith("crates/") for file in files) else set()
    for file in files:
        path = REPOSITORY / file
        if path.suffix == ".py" and path.is_relative_to(tree.PYTHON):
            names.add(dotted(path, tree.PYTHON))
        elif path.suffix == ".py":
            names.add(dotted(path, REPOSITORY))
        elif file.startswith("tests/"):
            names |= {dotted(test, REPOSITORY) for test in path.parent.glob("test_*.py")}
    return names


@functools.cache
def python_uses() -> dict[str, set[str]]:
    """The files that each file imports; a test uses the conftest.py files above it."""
    sources = list((REPOSITORY / "tests").rglob("*.py"))
    modules, all_imports = Files(sources, at_import=True), Files(sources).imports
    uses = {name: {target for (target,) in used} for (name,), used in modules.uses().items()}
    for name, used in uses.items():
        if any(NATIVE in (module, f"{module}.{item}") for module, item in all_imports(name)):
            used.add(NATIVE)
        parts = name.split(".")
        above = (".".join([*parts[:end], "conftest"]) for end in range(1, len(parts)))
        used |= {each for each in above if each in uses and each != name}
    return uses


def main() -> None:
    """Print the names for one language."""
    files = changed_files()
    if any(file.startswith(EVERYWHERE) for file in files):
        files = []
    print(*{"rust": crates, "python": tests}[sys.argv[1]](files))


if __name__ == "__main__":
    main()
