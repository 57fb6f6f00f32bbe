"""Causes from objects that a real Kubernetes 1.36.3 had when the fault was made, on a real node or
(`gpu`) with pretended ones.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock_ops.deploy.cluster.status import report
from tests.deploy.cluster.recorded import load

DOCUMENT = Path(__file__).parents[3] / "docs/deploy.md"
ANSWERS = re.findall(r"^```text\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
FILES = sorted((Path(__file__).parents[2] / "fixtures/kubernetes/causes").glob("*.json"))


def test_there_are_recordings() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_report_of_a_recorded_cluster(file: Path) -> None:
    snapshot, said = load(file)
    assert report(snapshot) == said
    assert any(line.startswith("cause: ") for line in said)


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_in_the_document_are_recorded_ones(answer: str) -> None:
    """A line may be cut short, by three dots."""
    shown = answer.splitlines()
    assert any(
        len(said) == len(shown)
        and all(
            line == given or (given.endswith("...") and line.startswith(given[:-3]))
            for line, given in zip(said, shown, strict=True)
        )
        for said in (load(file)[1] for file in FILES)
    )
