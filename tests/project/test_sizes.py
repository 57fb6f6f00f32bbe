"""Files and functions stay short enough to be read in one go."""

import functools
from statistics import quantiles

import pytest

from tests.project import tree

MAX_FILE_LINES = 500
MAX_FUNCTION_P90 = {"python": 25.0, "rust": 30.0}
MAX_FUNCTION_LINES = 100

# Files that may be longer, each with its reason.
LONG_FILES: dict[str, str] = {}
# Functions that may be longer, as "file name", each with its reason.
LONG_FUNCTIONS: dict[str, str] = {}


@functools.cache
def shipped_functions(language: str) -> tuple[tree.Function, ...]:
    """Functions of the product in one language; tests are not counted."""
    if language == "python":
        return tuple(f for path in tree.package_sources() for f in tree.python_functions(path))
    paths = (path for path in tree.sources(".rs") if "/src/" in tree.relative(path))
    return tuple(f for path in paths for f in tree.rust_functions(path))


def test_files_have_fewer_than_500_lines() -> None:
    lengths = {
        tree.relative(path): len(path.read_text().splitlines())
        for path in tree.sources(".py", ".pyi", ".rs", ".sh")
    }
    long = {name: lines for name, lines in lengths.items() if lines >= MAX_FILE_LINES}
    assert set(long) == set(LONG_FILES), (
        f"longer than {MAX_FILE_LINES} lines, or an exception without need: {long}"
    )


@pytest.mark.parametrize("language", ["python", "rust"])
def test_functions_are_short(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    functions = sorted(shipped_functions(language), key=lambda function: function.lines)
    assert len(functions) > 20
    p90 = quantiles([function.lines for function in functions], n=10)[-1]
    with capsys.disabled():
        longest = functions[-1]
        print(f"\n{language}: {len(functions)} functions, p90 {p90:.0f} lines, longest {longest}")
    assert p90 <= MAX_FUNCTION_P90[language]


@pytest.mark.parametrize("language", ["python", "rust"])
def test_no_function_is_very_long(language: str) -> None:
    long = {
        function.where: function.lines
        for function in shipped_functions(language)
        if function.lines > MAX_FUNCTION_LINES
    }
    unexplained = {where: n for where, n in long.items() if _name(where) not in LONG_FUNCTIONS}
    assert not unexplained


def _name(where: str) -> str:
    """`file name` of `file:line name`: lines move, names stay."""
    location, function = where.split(" ")
    return f"{location.rsplit(':', 1)[0]} {function}"
