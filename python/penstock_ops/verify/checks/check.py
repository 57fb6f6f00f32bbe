"""A check of one node, and findings of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penstock_ops.verify.evidence import Absence, Evidence, Snapshot
from penstock_ops.verify.finding import Bound, Finding, Layer, Status, shown
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Source


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check of one node by name, for `--checks`."""

    name: str
    title: str
    """What it finds out, in a few words, for `--list-checks`."""
    layer: Layer
    sources: tuple[Source, ...]
    judge: Callable[[NodeCheck, Snapshot, Needs], Iterator[Finding]] = field(repr=False)
    more: Callable[[Needs], Iterable[Source]] = field(default=lambda needs: (), repr=False)
    """Sources that depend on the needs, such as a measurement of each directory."""
    runs_beside_server: bool = True
    """False if it loads the machine, or measures what a running server has taken."""

    def sources_for(self, needs: Needs) -> tuple[Source, ...]:
        return (*self.sources, *self.more(needs))

    def finding(
        self,
        node: Snapshot,
        status: Status,
        summary: str,
        *,
        device: str = "",
        cause: str = "",
        remedy: str = "",
        evidence: str = "",
    ) -> Finding:
        return Finding(
            self.name,
            self.layer,
            node.node,
            device,
            status,
            summary,
            cause=cause,
            remedy=remedy,
            evidence=evidence,
        )

    def measured(
        self,
        node: Snapshot,
        value: float,
        bound: Bound,
        what: str,
        *,
        device: str = "",
        cause: str = "",
        remedy: str = "",
        evidence: str = "",
    ) -> Finding:
        """A finding whose status follows from the bound."""
        status = bound.status(value)
        missed = status is not Status.PASS
        return Finding(
            self.name,
            self.layer,
            node.node,
            device,
            status,
            f"{what}: {shown(value)} {bound.unit}",
            value,
            bound,
            cause if missed else "",
            remedy if missed else "",
            evidence,
        )

    def absent(self, node: Snapshot, evidence: Evidence, *, is_needed: bool) -> Finding:
        """The finding where a source gave nothing: never a pass. UNKNOWN if the plan needs what it
        describes, and if something is there that cannot be read.
        """
        unreadable = evidence.absence in (Absence.FAILED, Absence.TIMEOUT)
        status = Status.UNKNOWN if is_needed or unreadable else Status.SKIPPED
        remedy = "run as root, or with the capability" if evidence.absence is Absence.DENIED else ""
        if status is Status.UNKNOWN and not remedy:
            remedy = "install the tool, or mount what it reads into the container"
        return self.finding(node, status, evidence.detail, remedy=remedy)
