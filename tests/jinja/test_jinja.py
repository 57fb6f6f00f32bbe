"""Templates beside Jinja2, as transformers configures it: the same texts, and errors where it has
errors."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.jinja.fuzz import Expressions
from tests.jinja.reference import Outcome, ours, rendered

HERE = Path(__file__).parent
EXPRESSIONS = (HERE / "expressions.txt").read_text(encoding="utf-8").splitlines()
STATEMENTS: list[str] = json.loads((HERE / "statements.json").read_text(encoding="utf-8"))
CONVERSATIONS: list[dict[str, Any]] = json.loads(
    (HERE / "conversations.json").read_text(encoding="utf-8")
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+|<(generator|built-in|[a-z_]*iterator)[^>]*>|<[a-z]+>")
APART = re.compile(
    # Jinja reckons constants before it runs, where a wrong subscript is undefined.
    "not subscriptable"
    # Keys are texts, numbers and tuples of them.
    "|unhashable"
    # `items` fails where it is called, not where its values are read.
    "|item pairs"
    # Python's addresses and objects.
    "|generator|iterator|0x[0-9a-f]{6}|Markup|range\\("
)

RAISED = "TemplateError: "
"""What the template's own `raise_exception` raises."""


def variables() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((HERE / "variables.json").read_text(encoding="utf-8"))
    return read


def same(ours: Outcome, theirs: Outcome) -> bool:
    """Errors have words of their own."""
    return ours == theirs or ours[0] == theirs[0] == "error"


def test_expressions() -> None:
    given = variables()
    for expression in EXPRESSIONS:
        source = f"{{{{ {expression} }}}}"
        theirs = rendered(source, copy.deepcopy(given))
        assert same(ours(source, given), theirs), (expression, ours(source, given), theirs)


def test_statements() -> None:
    given = variables()
    for source in STATEMENTS:
        theirs = rendered(source, copy.deepcopy(given))
        assert same(ours(source, given), theirs), (source, ours(source, given), theirs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_random_expressions(seed: int) -> None:
    given = variables()
    compared = 0
    expressions = Expressions(sorted(given), seed)
    for depth in (2, 3, 3, 4) * 250:
        source = f"{{{{ {expressions.make(depth)} }}}}"
        got, theirs = ours(source, given), rendered(source, copy.deepcopy(given))
        if APART.search(got[1] + theirs[1]):
            continue
        compared += theirs[0] == "text"
        assert same(got, theirs), (source, got, theirs)
    assert compared > 300


GOLDEN = HERE.parent.parent / "crates/base/tokenizer/tests/golden/templates"
TEMPLATES = sorted([*HERE.glob("templates/*.jinja"), *GOLDEN.glob("*.jinja")])


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.stem))
def test_published_constructs(path: Path) -> None:
    """Templates written with what published ones use, under conversations of all kinds."""
    source = path.read_text(encoding="utf-8")
    # Those that know no tools get them as text, which is no affair of Jinja's.
    knows_tools = "tools" in source and "tool_calls" in source
    texts = 0
    for conversation in CONVERSATIONS:
        if "tools" in conversation and not knows_tools:
            continue
        for options in ({}, {"enable_thinking": False}, {"add_generation_prompt": False}):
            given = {"bos_token": "<s>", "eos_token": "</s>", **conversation, **options}
            theirs = rendered(source, copy.deepcopy(given))
            got = ours(source, given)
            texts += theirs[0] == "text"
            if theirs[1].startswith(RAISED) and got[0] == "text":
                # Penstock tried another form of the conversation, which leaves out no text.
                for message in conversation["messages"]:
                    assert (message["content"] or "").strip() in got[1]
                continue
            assert same(got, theirs), (conversation, got, theirs)
    assert texts > 0
