"""The extension and the reference against the golden vectors of the block-hash rule."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.prefix import reference

_native = pytest.importorskip(
    "penstock._native", reason="the extension is not built: run `make install`"
)


@pytest.fixture(scope="module")
def golden(repository: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (repository / "tests/golden/prefix/chain.json").read_text()
    )
    return document


def test_chains(golden: dict[str, Any]) -> None:
    for case in golden["chains"]:
        parent = case["parent"] and bytes.fromhex(case["parent"])
        tokens = array("I", case["tokens"])
        signed = array("i", tokens.tobytes())
        found = _native.hash_chain(bytes.fromhex(case["identity"]), parent, signed)
        assert [digest.hex() for digest in found] == case["digests"], case["name"]


def test_roots(golden: dict[str, Any]) -> None:
    for case in golden["roots"]:
        arguments = [bytes.fromhex(case[name]) for name in ("identity", "adapter", "salt")]
        assert _native.hash_root(*arguments).hex() == case["root"], case["name"]


def test_the_vectors_are_those_of_the_reference(golden: dict[str, Any]) -> None:
    for case in golden["chains"]:
        parent = case["parent"] and bytes.fromhex(case["parent"])
        found = reference.chain(bytes.fromhex(case["identity"]), parent, case["tokens"])
        assert [digest.hex() for digest in found] == case["digests"], case["name"]
    for case in golden["roots"]:
        arguments = [bytes.fromhex(case[name]) for name in ("identity", "adapter", "salt")]
        assert reference.root(*arguments).hex() == case["root"], case["name"]
