"""The notices name what is linked, and its licences are those that `deny.toml` allows."""

import ast
import re
import shutil
import tomllib

import pytest

from scripts.third_party import Package, licence, packages, rows
from tests.project.tree import REPOSITORY

if not shutil.which("cargo"):
    pytest.skip("no cargo: https://rustup.rs installs it", allow_module_level=True)

WORDS = re.compile(r"[A-Za-z0-9.-]+(?: WITH [A-Za-z0-9.-]+)?")


@pytest.fixture(scope="module")
def linked() -> list[Package]:
    return packages()


def test_the_notices_list_what_is_linked(linked: list[Package]) -> None:
    notices = (REPOSITORY / "THIRD-PARTY-NOTICES.md").read_text()
    listed = re.findall(r"^\| [a-z].*\|$", notices, re.MULTILINE)
    assert listed == rows(linked), "python scripts/third_party.py > THIRD-PARTY-NOTICES.md"


def test_each_licence_is_allowed(linked: list[Package]) -> None:
    allowed = set(tomllib.loads((REPOSITORY / "deny.toml").read_text())["licenses"]["allow"])
    for package in linked:
        assert is_allowed(licence(package), allowed), (package["name"], licence(package))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0", False),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0 AND MIT", False),
        ("(GPL-3.0 OR ISC) AND MIT", True),
        ("MIT AND (GPL-3.0 OR AGPL-3.0)", False),
    ],
)
def test_an_expression_is_read_as_spdx_means_it(expression: str, expected: bool) -> None:
    assert is_allowed(expression, {"MIT", "ISC"}) == expected


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Whether allowed licences alone satisfy the SPDX expression."""
    known = WORDS.sub(lambda word: operator(word.group(), allowed), expression)
    return value(ast.parse(known, mode="eval").body)


def value(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool(known)):
            return known
        case ast.BoolOp(op=ast.And(), values=values):
            return all(value(one) for one in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(value(one) for one in values)
    raise AssertionError(ast.dump(node))


def operator(word: str, allowed: set[str]) -> str:
    return word.lower() if word in ("AND", "OR") else str(word in allowed)
