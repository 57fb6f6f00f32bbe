"""Whether the clock is synchronised, and names are resolved in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_ops.verify.checks import cpu
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import measurement
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import of_node
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Measurement, Source


def judge_clock(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    """The kernel's own account. A virtual machine whose host sets the clock looks unsynchronised,
    so that only the offset between nodes can fail.
    """
    source = node[cpu.HOST.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=False)
        return
    found = measurement(source.text, "clock_synchronised", "clock_error_ms")
    if found["clock_synchronised"] == 1:
        yield check.measured(
            node,
            found["clock_error_ms"],
            of_node("clock_error_ms").bound(is_ceiling=True),
            "maximum error of the clock",
            cause="time servers are far away or not reached",
            remedy="chronyc sources; choose nearer servers",
        )
        return
    yield check.finding(
        node,
        Status.WARN if needs.nodes > 1 else Status.SKIPPED,
        "no time service disciplines this clock, or only that of the host does",
        cause="certificates, tokens and traces of several nodes need equal clocks",
        remedy="run chrony; see the offset between nodes",
    )


def lookups(needs: Needs) -> Iterable[Source]:
    return (Measurement("names", ("names", *needs.hosts), 60.0),) if needs.hosts else ()


def judge_names(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if not needs.hosts:
        yield check.finding(node, Status.SKIPPED, "the plan names no host")
        return
    source = node["names"]
    if not source.is_present:
        yield check.absent(node, source, is_needed=True)
        return
    found = measurement(source.text, *needs.hosts)
    for host in needs.hosts:
        if found[host] < 0:
            yield check.finding(
                node,
                Status.FAIL,
                "its name is not resolved",
                device=host,
                cause="no DNS record: of a headless Service, pods need publishNotReadyAddresses",
                remedy=f"getent hosts {host}; /etc/resolv.conf",
            )
            continue
        yield check.measured(
            node,
            found[host],
            of_node("name_ms").bound(is_ceiling=True),
            "slowest of 5 lookups",
            device=host,
            cause="a slow DNS server, or search domains that are tried first",
            remedy="end the name with a dot, or set ndots: 1",
        )


CLOCK = NodeCheck("clock", "synchronisation of the clock", Layer.HOST, (cpu.HOST,), judge_clock)
NAMES = NodeCheck(
    "names", "lookups of names of nodes and stores", Layer.HOST, (), judge_names, lookups
)
