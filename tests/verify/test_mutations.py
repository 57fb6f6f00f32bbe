"""10,000 mutations of what sources give: a parser names the line, or the judgement is the same or
worse. No other error, and never a better judgement.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.finding import Status
from penstock_ops.verify.judging import findings_of
from penstock_ops.verify.sources import Links, clean
from tests.verify.mutations import MUTATIONS
from tests.verify.node import NEEDS, healthy, worst
from tests.verify.test_node import FAULTS

SEED, COUNT = 37, 10_000
HARMLESS = (Status.SKIPPED, Status.PASS)
LOGS = {
    "kernel-log": "a log has no redundancy: an event that is gone did not happen",
    "cpuinfo": "a CPU without the flag amx_tile has no AMX, one with the flag hypervisor is a VM",
}
"""Sources from which a mutation can take a fault without a trace, and why."""
VALID = {
    ("process-status", "decimal comma"): "a comma separates numbers of CPUs",
    ("host", "swap fields"): "our own measurement prints it: no other version of a tool",
}
"""Mutations that make another valid text."""


def is_better(before: Status, after: Status) -> bool:
    """Whether a judgement hides a fault. UNKNOWN does not: the verdict is then not proven."""
    if after is Status.UNKNOWN or before in HARMLESS:
        return False
    if before is Status.UNKNOWN:
        return True
    return after in HARMLESS or (before is Status.FAIL and after is Status.WARN)


def nodes(tmp_path: Path) -> Iterator[tuple[Snapshot, set[str]]]:
    """The healthy node, then each fault with the sources of its check."""
    yield healthy(tmp_path / "healthy").snapshot(), set()
    for number, (check, _, _, fault) in enumerate(FAULTS.values()):
        tree = healthy(tmp_path / str(number))
        fault(tree)
        (found,) = [each for each in CHECKS if each.name == check]
        yield tree.snapshot(), {source.name for source in found.sources_for(NEEDS)}


@cache
def readers(source: str) -> list[NodeCheck]:
    name = source.removesuffix(".end")
    return [each for each in CHECKS if any(s.name == name for s in each.sources_for(NEEDS))]


def changed(evidence: Evidence, chance: random.Random, mutation: str) -> Evidence:
    mutate = MUTATIONS[mutation]
    if not evidence.files:
        return replace(evidence, text=clean(mutate(chance, evidence.text).encode()))
    path = chance.choice(sorted(evidence.files))
    text = clean(mutate(chance, evidence.files[path]).encode())
    return replace(evidence, files={**evidence.files, path: text})


def test_no_mutation_raises_or_hides_a_fault(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    links = {
        each.name
        for check in CHECKS
        for each in check.sources_for(NEEDS)
        if isinstance(each, Links)
    }
    cases = [
        (node, name, worst(findings_of(readers(name), node, NEEDS)))
        for node, faulty in nodes(tmp_path)
        for name, evidence in node.evidence.items()
        if evidence.is_present and name not in links and (not faulty or name in faulty)
    ]
    seen: set[Status] = set()
    for number in range(COUNT):
        node, name, before = cases[number % len(cases)]
        mutation = chance.choice(list(MUTATIONS))
        mutated = Snapshot(
            node.node, {**node.evidence, name: changed(node[name], chance, mutation)}
        )
        findings = findings_of(readers(name), mutated, NEEDS)
        after = worst(findings)
        seen.update(after.values())
        for finding in findings:
            assert finding.remedy or finding.status in HARMLESS
            if finding.status is Status.UNKNOWN and ", expected " in finding.summary:
                assert "line " in finding.summary
        if name not in LOGS and (name, mutation) not in VALID:
            _compare(before, after, f"{mutation} of {name}, number {number}")
    assert seen == set(Status)


def _compare(before: Mapping[str, Status], after: Mapping[str, Status], what: str) -> None:
    for check, status in before.items():
        assert check in after, f"{what}: no finding of {check}"
        assert not is_better(status, after[check]), f"{what}: {check} {status} -> {after[check]}"


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_changes_a_text(mutation: str) -> None:
    text = "Link 0: 26.562 GB/s\nMax open files 1024 bytes\n"
    made = {MUTATIONS[mutation](random.Random(seed), text) for seed in range(50)}
    assert made - {text}
