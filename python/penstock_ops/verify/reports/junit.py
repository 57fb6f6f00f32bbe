"""The verdict as JUnit's XML: a suite for each node, a test case for each finding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from penstock_ops.verify.finding import Finding, Status
from penstock_ops.verify.reports.escaping import escaped
from penstock_ops.verify.verdict import Verdict

ELEMENTS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIPPED: "skipped"}
"""Child of a test case by status. JUnit knows no warnings: they pass, with the text as output."""
INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, not even as references."""


def junit(verdict: Verdict) -> str:
    root = ElementTree.Element(
        "testsuites", {"name": "penstock verify", **_counts(verdict.findings)}
    )
    for node in dict.fromkeys(finding.node for finding in verdict.findings):
        findings = [finding for finding in verdict.findings if finding.node == node]
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": _text(node) or "node", **_counts(findings)}
        )
        for finding in findings:
            suite.append(_case(finding))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _counts(findings: Sequence[Finding]) -> dict[str, str]:
    counts = {"tests": str(len(findings))}
    for status, name in ELEMENTS.items():
        plural = name if status is Status.SKIPPED else f"{name}s"
        counts[plural] = str(sum(finding.status is status for finding in findings))
    return counts


def _case(finding: Finding) -> ElementTree.Element:
    name = " ".join(filter(None, (finding.check, finding.device)))
    case = ElementTree.Element(
        "testcase", classname=f"penstock.verify.{finding.layer}", name=_text(name)
    )
    body = "\n".join(filter(None, (finding.summary, finding.cause, finding.remedy)))
    if element := ELEMENTS.get(finding.status):
        child = ElementTree.SubElement(case, element, message=_text(finding.summary))
        child.text = None if finding.status is Status.SKIPPED else _text(body)
    elif finding.status is Status.WARN:
        ElementTree.SubElement(case, "system-out").text = _text(f"warning: {body}")
    return case


def _text(text: str) -> str:
    return INVALID.sub("?", "\n".join(map(escaped, text.split("\n"))))
