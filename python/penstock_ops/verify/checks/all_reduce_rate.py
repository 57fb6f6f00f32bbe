"""All-reduce between the GPUs of a node, measured by nccl-tests where it is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Absence, Evidence, Snapshot
from penstock_ops.verify.expected import of_accelerator
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.performance.nccl_tests import Reductions, parse
from penstock_ops.verify.sources import Command, Source

NAME = "all-reduce-rate"
LARGE = 10**9
"""Bytes from which the rate of links decides, not their latency."""
LARGEST = 4 << 30
SECONDS = 90.0
ELEMENT = 4
"""Bytes of a float, the type that the tool adds."""
MEASURED_GPUS = 8
"""Of the nodes from which the expected rates are."""
LINKS = "a link with errors, a GPU with lowered clocks, or NVLink that NCCL does not use"
REMEDY = "see the checks nvlink, nvlink-fabric, throttling and peer-reads; NCCL_DEBUG=INFO"


def sources(needs: Needs) -> Iterable[Source]:
    """Sizes from the plan's own, doubled up to the largest: both ends are judged."""
    if needs.devices > 1:
        size = -(-needs.reduced_bytes // ELEMENT) * ELEMENT
        words = ("-b", size, "-e", LARGEST, "-f", 2, "-g", needs.devices)
        yield Command(NAME, ("all_reduce_perf", *map(str, words)), SECONDS)


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if needs.devices < 2:
        reason = "no plan with several devices on a node"
        yield check.finding(node, Status.SKIPPED, reason)
        return
    source = node[NAME]
    # The tool ends with an error if a value is wrong.
    if not source.is_present and not _has_wrong_values(source):
        yield check.absent(node, source, is_needed=False)
        return
    found = parse(source.text)
    if found.ranks != needs.devices:
        raise ParseError(1, f"{found.ranks} ranks", f"{needs.devices}, the plan's devices")
    if found.wrong:
        yield check.finding(
            node,
            Status.FAIL,
            f"all-reduces gave {found.wrong} wrong values",
            cause="a GPU, its memory or a link changes data",
            remedy="dcgmi diag -r 3; see the checks ecc, nvlink and xid; replace the device",
        )
        return
    yield from _rates(check, node, found, needs)


def _has_wrong_values(source: Evidence) -> bool:
    """Whether they made a run fail."""
    if source.absence is not Absence.FAILED:
        return False
    try:
        return parse(source.text).wrong > 0
    except ParseError:
        return False


def _rates(check: NodeCheck, node: Snapshot, found: Reductions, needs: Needs) -> Iterator[Finding]:
    """At the plan's size the time counts, at large ones the rate. Averages over all sizes mix both
    and mean nothing.
    """
    checked = "" if found.is_checked else ", values not checked"
    planned = [row for row in found.rows if row.bytes >= needs.reduced_bytes]
    large = [row for row in found.rows if row.bytes >= LARGE]
    if not planned or not large:
        raise ParseError(1, f"{len(found.rows)} sizes", f"the plan's and one of {LARGE} bytes")
    yield check.measured(
        node,
        planned[0].microseconds,
        needs.bound("all_reduce_us", "us"),
        f"all-reduce of {planned[0].bytes / 1e3:.1f} KB over {found.ranks} GPUs{checked}",
        cause="latency: a processor that sleeps or is on another NUMA node, or no NVLink",
        remedy=f"{REMEDY}; see the checks numa and frequency",
    )
    best = max(large, key=lambda row: row.bus_gb_per_s)
    yield check.measured(
        node,
        best.bus_gb_per_s,
        _expected(needs),
        f"all-reduce of {best.bytes / 1e9:.1f} GB, rate of the links{checked}",
        cause=LINKS,
        remedy=REMEDY,
    )


def _expected(needs: Needs) -> Bound:
    expected = of_accelerator(needs.accelerator).get("all_reduce_gb_per_s")
    if expected is None or needs.devices != MEASURED_GPUS:
        return Bound(None, None, "GB/s")
    return expected.bound()


CHECK = NodeCheck(
    NAME,
    "all-reduces between the GPUs of a node, by nccl-tests",
    Layer.FABRIC,
    (),
    judge,
    sources,
    runs_beside_server=False,
)
