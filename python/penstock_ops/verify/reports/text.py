"""The verdict as text for a terminal: what decides first, then a line for each finding."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.verify.finding import SEVERITY, Bound, Finding, Status, shown
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.reports.escaping import escaped
from penstock_ops.verify.verdict import Outcome, Verdict

STYLES = {
    Status.FAIL: "31;1",
    Status.UNKNOWN: "35",
    Status.WARN: "33",
    Status.PASS: "32",
    Status.SKIPPED: "2",
}
"""SGR codes."""
WIDTH = max(map(len, Status))
INDENT = " " * (WIDTH + 2)


def text(verdict: Verdict, needs: Needs, *, is_styled: bool = False) -> str:
    """All findings by node, the worst first, then the verdict in the last lines."""
    lines: list[str] = []
    for node in dict.fromkeys(finding.node for finding in verdict.findings):
        lines += [escaped(node), *_node(verdict, node, is_styled), ""]
    return "\n".join([*lines, *_conclusion(verdict, needs)])


def _node(verdict: Verdict, node: str, is_styled: bool) -> Iterator[str]:
    findings = [finding for finding in verdict.findings if finding.node == node]
    shown_findings = [each for each in findings if each.status is not Status.SKIPPED]
    for finding in sorted(shown_findings, key=lambda each: -SEVERITY.index(each.status)):
        yield from _finding(finding, is_styled)
    yield from _skipped(findings, is_styled)


def _skipped(findings: list[Finding], is_styled: bool) -> Iterator[str]:
    """A line for each reason."""
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status is Status.SKIPPED:
            name = " ".join(filter(None, (finding.check, escaped(finding.device))))
            reasons.setdefault(finding.summary, []).append(name)
    for reason, names in reasons.items():
        yield f"{_status(Status.SKIPPED, is_styled)}  {', '.join(names)}: {escaped(reason)}"


def _status(status: Status, is_styled: bool) -> str:
    padded = status.value.ljust(WIDTH)
    return f"\x1b[{STYLES[status]}m{padded}\x1b[0m" if is_styled else padded


def _finding(finding: Finding, is_styled: bool) -> Iterator[str]:
    name = " ".join(filter(None, (finding.check, escaped(finding.device))))
    yield f"{_status(finding.status, is_styled)}  {name}: {value(finding)}"
    if finding.status is Status.PASS:
        return
    if finding.evidence:
        yield f"{INDENT}read: {escaped(finding.evidence)}"
    if finding.cause:
        yield f"{INDENT}cause: {escaped(finding.cause)}"
    if finding.remedy:
        yield f"{INDENT}remedy: {escaped(finding.remedy)}"


def value(finding: Finding) -> str:
    """The summary of a finding, which has its measured value, and the limits of that value."""
    within = _limits(finding.bound) if finding.bound else ""
    return escaped(finding.summary) + (f" ({within})" if within else "")


def _limits(bound: Bound) -> str:
    side = "at most" if bound.is_ceiling else "at least"
    parts = [
        f"{name} {side} {shown(limit)} {bound.unit}"
        for name, limit in (("needed", bound.needed), ("expected", bound.expected))
        if limit is not None
    ]
    return ", ".join(parts)


def _conclusion(verdict: Verdict, needs: Needs) -> Iterator[str]:
    yield counted(verdict, needs)
    cause = verdict.cause
    if cause:
        device = f" {escaped(cause.device)}" if cause.device else ""
        yield f"{cause.layer}, {escaped(cause.node)}{device}: {escaped(cause.summary)}"
        if cause.cause:
            yield f"cause: {escaped(cause.cause)}"
    elif verdict.outcome is Outcome.NOT_PROVEN:
        yield "no check applies to this machine"


def counted(verdict: Verdict, needs: Needs) -> str:
    """The verdict, and how many findings have each status, on one line."""
    subject = f"{escaped(needs.plan)} ({escaped(needs.model)})" if needs.is_planned else "hardware"
    counts = ", ".join(
        f"{verdict.count(status)} {status}"
        for status in reversed(SEVERITY)
        if verdict.count(status)
    )
    return f"{subject}: {verdict.outcome}; {counts}"
