"""JSON-Schema-Test-Suite, as the source package of `jsonschema` carries it: what compiles is
honoured.
"""

from __future__ import annotations

import itertools
import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.grammar.vocabulary import write_tokenizer

if TYPE_CHECKING:
    from penstock._native import Grammar, Tokenizer

DRAFTS = ["draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"]
ORDERS = 24
"""Orders of members that a valid instance is tried in: a grammar has the schema's."""


@dataclass
class Outcome:
    """What became of a draft's schemas and instances."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    weakened: list[str] = field(default_factory=list)
    """Invalid instances that a grammar takes."""
    narrowed: list[str] = field(default_factory=list)
    """Valid ones that it does not."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    native = pytest.importorskip("penstock._native", reason="run `make install`")
    directory = tmp_path_factory.mktemp("bytes")
    write_tokenizer(directory)
    made: Tokenizer = native.Tokenizer(str(directory))
    return made


@pytest.fixture(scope="module")
def suite() -> tarfile.TarFile:
    found = sorted((Path(sys.prefix) / "sources").glob("jsonschema-*.tar.gz"))
    if not found:
        pytest.skip("JSON-Schema-Test-Suite is missing: run `make test-tools`")
    return tarfile.open(found[-1])


def cases(suite: tarfile.TarFile, draft: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Names and cases of the mandatory part of a draft."""
    for member in suite.getmembers():
        path = Path(member.name)
        if path.parent.as_posix().endswith(f"json/tests/{draft}") and path.suffix == ".json":
            read = suite.extractfile(member)
            assert read is not None
            for case in json.load(read):
                yield f"{path.stem}: {case['description']}", case


def orders(value: object) -> Iterator[object]:
    """The value with the members of its objects in several orders."""
    if isinstance(value, dict):
        inner = [list(itertools.islice(orders(item), 3)) for item in value.values()]
        for values in itertools.islice(itertools.product(*inner), ORDERS):
            items = list(zip(value, values, strict=True))
            for order in itertools.islice(itertools.permutations(items), ORDERS):
                yield dict(order)
    elif isinstance(value, list):
        inner = [list(itertools.islice(orders(item), 3)) for item in value]
        for values in itertools.islice(itertools.product(*inner), ORDERS):
            yield list(values)
    else:
        yield value


def takes(grammar: Grammar, value: object) -> bool:
    text = list(json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
    taken, whole, _ = grammar.follow(text)
    return taken == len(text) and whole


def run(tokenizer: Tokenizer, suite: tarfile.TarFile, draft: str) -> Outcome:
    outcome = Outcome()
    for name, case in cases(suite, draft):
        schema = case["schema"]
        if isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": SPECIFICATIONS[draft], **schema}
        try:
            grammar = tokenizer.grammar("json", json.dumps(schema))
        except ValueError as error:
            outcome.counts["refused"] += 1
            outcome.reasons[str(error)[:60]] += 1
            continue
        outcome.counts["compiled"] += 1
        tests = case["tests"]
        assert isinstance(tests, list)
        for test in tests:
            shown = f"{name} / {test['description']}"
            if not test["valid"]:
                outcome.counts["invalid"] += 1
                if takes(grammar, test["data"]):
                    outcome.weakened.append(shown)
            else:
                outcome.counts["valid"] += 1
                if not any(takes(grammar, value) for value in orders(test["data"])):
                    outcome.narrowed.append(shown)
    return outcome


SPECIFICATIONS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


@pytest.mark.parametrize("draft", DRAFTS)
def test_no_schema_is_weakened(tokenizer: Tokenizer, suite: tarfile.TarFile, draft: str) -> None:
    outcome = run(tokenizer, suite, draft)
    print(draft, dict(outcome.counts), "narrowed", len(outcome.narrowed))
    for line in outcome.narrowed:
        print("  narrowed:", line)
    for line in outcome.weakened:
        print("  WEAKENED:", line)
    assert outcome.weakened == []
