"""Judgement of RDMA between nodes: rates and latencies of each rail, by perftest. Pure.

A rail is the adapter of one name on all nodes. The average rate counts, not the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock_ops.verify.between.fault_domains import (
    Fault,
    everyone,
    finding,
    measured_findings,
    pair_name,
)
from penstock_ops.verify.between.measurements import Measurements, Memory, Rail
from penstock_ops.verify.between.rounds import Pair
from penstock_ops.verify.expected import of_node
from penstock_ops.verify.finding import Bound, Finding, Status
from penstock_ops.verify.needs import Needs

BANDWIDTH, LATENCY = "rdma_bandwidth", "rdma_latency"
PATH = Fault(
    BANDWIDTH,
    {
        "node": "its adapter, or the adapter's PCIe slot or cable: both directions are slow",
        "to it": "its switch port, or the cable to it: all nodes are slow to it",
        "from it": "its adapter reads memory slowly: the PCIe link, or another NUMA node",
        "pair": "a link on the path between both",
        "everywhere": "what the rail's pairs share: its switch, or a setting of all nodes",
    },
    {
        "node": "see the checks hca, pcie and hca-errors there; swap the cable, then the adapter",
        "to it": "look at the switch port's rate, errors and congestion; swap the cable",
        "pair": "look at the switches' links on this path",
        "everywhere": "look at the rail's switch; compare the port's rate with the plan's",
    },
)
GPU_PATH = Fault(
    BANDWIDTH,
    {
        "node": "slow from GPU memory only: ACS or the IOMMU sends reads of the GPU through the "
        "root complex, ATS is off in a virtual machine, or the GPU is on another NUMA node",
    },
    {
        "node": "clear ACS on the bridges above GPU and adapter (see the check acs), enable ATS of "
        "the adapter in a virtual machine (mlxconfig ATS_ENABLED=1), pair each adapter with a GPU "
        "below the same PCIe switch; see the checks iommu, gpudirect and numa",
    },
)
DISTANCE = Fault(
    LATENCY,
    {
        "node": "its processors sleep or are busy, or its adapter is on another NUMA node",
        "pair": "the path between both is longer than others, or congested",
        "everywhere": "the rail's switch, or power saving of all nodes",
    },
    {
        "node": "see the checks frequency and numa there",
        "pair": "look at the switches on this path",
        "everywhere": "look at the rail's switch; see the check frequency",
    },
)


def judge_rdma(found: Measurements, needs: Needs) -> Iterator[Finding]:
    """Findings of BANDWIDTH and LATENCY for each rail."""
    for check in (BANDWIDTH, LATENCY):
        if reason := found.skipped.get(check):
            yield finding(check, everyone(found), Status.SKIPPED, reason)
    for rail in found.rails:
        bound = rail_bound(rail, needs)
        host = rail.gbit_per_s.get(Memory.HOST, {})
        yield from _rates(found, rail, PATH, host, bound, Memory.HOST)
        gpu = {
            pair: value
            for pair, value in rail.gbit_per_s.get(Memory.GPU, {}).items()
            if not _is_explained(value, host.get(pair), bound)
        }
        yield from _rates(found, rail, GPU_PATH, gpu, bound, Memory.GPU)
        if rail.gpu_reason:
            reason = f"from GPU memory: {rail.gpu_reason}"
            yield replace(
                finding(BANDWIDTH, everyone(found), Status.SKIPPED, reason), device=rail.device
            )
        limit = of_node("rdma_read_us").bound(is_ceiling=True)
        yield from _measured(found, rail, DISTANCE, rail.read_us, limit, "read of 8 bytes")
        yield from _failures(found, rail)


def rail_bound(rail: Rail, needs: Needs) -> Bound:
    """Gb/s of one adapter: of the plan's node, or of its port without a plan."""
    planned = needs.bound("rail_gbit_per_s", "Gb/s")
    name = "ethernet" if rail.layer == "Ethernet" else "infiniband"
    share = of_node(f"rdma_share_{name}")
    rate = planned.expected or rail.port_gbit_per_s
    expected = round(share.value * rate, 1) or None
    formula = f"{share.value:g} of {rate:g} Gb/s ({share.source})"
    if planned.formula:
        formula += f"; needed: {planned.formula}"
    return Bound(planned.needed, expected, "Gb/s", formula=formula)


def _is_explained(gpu: float, host: float | None, bound: Bound) -> bool:
    """Whether a pair is slow from GPU memory because it is slow from any memory."""
    if host is None or bound.status(host) is Status.PASS:
        return False
    return bound.status(host) is bound.status(gpu)


def _rates(
    found: Measurements,
    rail: Rail,
    fault: Fault,
    rates: Mapping[Pair, float],
    bound: Bound,
    memory: Memory,
) -> Iterator[Finding]:
    return _measured(found, rail, fault, rates, bound, f"RDMA writes from {memory}")


def _measured(
    found: Measurements,
    rail: Rail,
    fault: Fault,
    values: Mapping[Pair, float],
    bound: Bound,
    what: str,
) -> Iterator[Finding]:
    slow = {pair for pair, value in values.items() if bound.status(value) is not Status.PASS}
    for each in measured_findings(found, values, slow, fault, bound, what):
        yield replace(each, device=rail.device)


def _failures(found: Measurements, rail: Rail) -> Iterator[Finding]:
    """A pair that could not be measured is no pass."""
    for (check, what, pair), reason in sorted(rail.failures.items()):
        result = finding(
            check,
            pair_name(found, pair),
            Status.UNKNOWN,
            f"{what}: {reason}",
            cause="perftest failed, ended early, or printed another form",
            remedy="run `ib_write_bw` by hand on both nodes; see the checks hca, roce and limits",
        )
        yield replace(result, device=rail.device)
