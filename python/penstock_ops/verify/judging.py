"""Judges a node's snapshot with a set of checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Finding, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Source


def sources_of(checks: Iterable[NodeCheck], needs: Needs) -> list[Source]:
    """The sources of all `checks`, each once."""
    return list(dict.fromkeys(source for check in checks for source in check.sources_for(needs)))


def findings_of(checks: Iterable[NodeCheck], node: Snapshot, needs: Needs) -> list[Finding]:
    return [finding for check in checks for finding in _findings(check, node, needs)]


def _findings(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    """A check's findings; UNKNOWN where its source has a form that the parser does not know."""
    try:
        yield from check.judge(check, node, needs)
    except ParseError as error:
        yield check.finding(
            node,
            Status.UNKNOWN,
            str(error),
            cause="a version of the tool or of the kernel with another format",
            remedy="compare the line with the tool's documentation, and report it",
        )
