"""The judgement of nccl-tests within a node, by the published table of source 002."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock_ops.verify.checks.all_reduce_rate import CHECK
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot
from penstock_ops.verify.finding import Bound, Finding, Status
from penstock_ops.verify.judging import findings_of
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command
from tests.verify.performance.texts import NODE

NEEDS = Needs(
    plan="plan.yaml",
    devices=8,
    accelerator="h100-sxm-80gb",
    reduced_bytes=16_777_200,
    bounds={"all_reduce_us": Bound(300.0, 150.0, "us", is_ceiling=True)},
)


def judged(evidence: Evidence, needs: Needs = NEEDS) -> list[Finding]:
    return findings_of([CHECK], Snapshot("node-0", {CHECK.name: evidence}), needs)


def test_the_published_node_passes_by_its_own_size_and_its_peak() -> None:
    """Its average over all sizes, 155.7 GB/s, is far below what links give, and means nothing."""
    time, rate = judged(Evidence(text=NODE))
    assert (time.status, time.measured) == (Status.PASS, 125.8)
    assert (rate.status, rate.measured) == (Status.PASS, 482.5)
    assert rate.bound is not None
    assert rate.bound.expected == 440


def test_the_plans_size_decides() -> None:
    [command] = CHECK.sources_for(NEEDS)
    assert isinstance(command, Command)
    assert " ".join(command.words) == "all_reduce_perf -b 16777200 -e 4294967296 -f 2 -g 8"
    bounds = {"all_reduce_us": replace(NEEDS.bounds["all_reduce_us"], needed=100.0)}
    time, rate = judged(Evidence(text=NODE), replace(NEEDS, bounds=bounds))
    assert (time.status, rate.status) == (Status.FAIL, Status.PASS)


def test_halved_links_warn() -> None:
    lines = [
        line for line in NODE.split("\n") if not line.strip().startswith(("2", "4", "8", "17"))
    ]
    slow = (
        "\n".join(lines)
        .replace("4014.0", "8028.0")
        .replace("267.50", "133.75")
        .replace("468.12", "234.06")
    )
    *_, rate = judged(Evidence(text=slow.replace("\n           8", "\n#          8")))
    assert (rate.status, rate.measured) == (Status.WARN, 234.06)
    assert "nvlink" in rate.remedy


@pytest.mark.parametrize("absence", [None, Absence.FAILED])
def test_wrong_values_fail_whatever_the_rate(absence: Absence | None) -> None:
    text = NODE.replace("values : 0 OK", "values : 2 FAILED")
    [finding] = judged(Evidence(text=text, absence=absence, detail="exit status 1"))
    assert finding.status is Status.FAIL
    assert "2 wrong values" in finding.summary


@pytest.mark.parametrize(
    ("evidence", "status"),
    [
        (Evidence(absence=Absence.MISSING, detail="no program all_reduce_perf"), Status.SKIPPED),
        (Evidence(absence=Absence.TIMEOUT, detail="no end after 90 s"), Status.UNKNOWN),
        (Evidence(text=NODE, absence=Absence.FAILED, detail="exit status -9"), Status.UNKNOWN),
        (Evidence(text=NODE[:-200]), Status.UNKNOWN),
    ],
)
def test_a_run_that_did_not_end_is_no_pass(evidence: Evidence, status: Status) -> None:
    [finding] = judged(evidence)
    assert finding.status is status


def test_another_number_of_ranks_is_no_pass() -> None:
    [finding] = judged(Evidence(text=NODE), replace(NEEDS, devices=4))
    assert finding.status is Status.UNKNOWN


def test_without_a_plan_it_does_not_apply() -> None:
    assert CHECK.sources_for(Needs()) == ()
    [finding] = judged(Evidence(), Needs())
    assert finding.status is Status.SKIPPED
