"""Whether GPUs, their NICs and the process's CPUs belong to the same NUMA nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks import pci, pcie
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, only_line
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files

NODES = Files("numa-node", "/sys/bus/pci/devices/*/numa_node")
CPUS_OF_NODES = Files("numa-cpus", "/sys/devices/system/node/node*/cpulist")
PROCESS = Files("process-status", "/proc/self/status")
NUMBER = re.compile(r"-1|\d{1,3}")
RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
ALLOWED = re.compile(r"^Cpus_allowed_list:\t(\S+)$", re.MULTILINE)
MOST_CPUS = 8192


def nodes_of(evidence: Evidence) -> dict[str, int]:
    """NUMA node by bus id; -1 where the firmware names none."""
    found: dict[str, int] = {}
    for path, text in evidence.files.items():
        match = fields(only_line(text, path), 1, NUMBER, "the number of a NUMA node")
        found[pci.bus_id(path)] = int(match[0])
    return found


def cpu_list(text: str, place: str) -> frozenset[int]:
    """The CPUs of a list such as 0-51,104-155."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST_CPUS:
            raise ParseError(1, text, "a list of CPUs such as 0-51,104-155", place)
        found.update(range(first, last + 1))
    return frozenset(found)


def cpus_of_nodes(evidence: Evidence) -> dict[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    for path, text in evidence.files.items():
        # A node with memory only has no CPUs, and an empty line.
        line = only_line(text, path) if text.strip() else ""
        found[int(path.split("/")[5].removeprefix("node"))] = cpu_list(line, path)
    return found


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    devices = pci.accelerators_on_bus(node) + pci.accelerators_on_bus(node, pci.AMD)
    if not devices:
        yield check.finding(node, Status.SKIPPED, "no accelerator on the PCI bus")
        return
    for source in (NODES, CPUS_OF_NODES, PROCESS):
        if not node[source.name].is_present:
            yield check.absent(node, node[source.name], is_needed=False)
            return
    of_device = nodes_of(node[NODES.name])
    cpus = cpus_of_nodes(node[CPUS_OF_NODES.name])
    if len(cpus) < 2:
        yield _single(check, node)
        return
    nics = set(pcie.examined(node)) - set(devices)
    nodes_of_nics = {of_device.get(nic, -1) for nic in nics}
    allowed = _allowed(next(iter(node[PROCESS.name].files.values())))
    for device in devices:
        own = of_device.get(device, -1)
        if own not in cpus:
            yield check.finding(
                node,
                Status.WARN,
                "its NUMA node is unknown",
                device=device,
                cause="the firmware, or a VM without vNUMA, does not name it",
                remedy="switch vNUMA on, or give NCCL a topology file",
            )
        elif nics and own not in nodes_of_nics:
            yield check.finding(
                node,
                Status.WARN,
                f"no NIC on its NUMA node {own}",
                device=device,
                cause="its traffic crosses the link between CPUs",
                remedy="move a NIC into a slot of that CPU",
            )
        elif not allowed & cpus[own]:
            yield check.finding(
                node,
                Status.WARN,
                f"this process has no CPU of its NUMA node {own}",
                device=device,
                cause="copies to the device cross the link between CPUs",
                remedy="widen the cpuset, or start the process with numactl",
            )
        else:
            yield check.finding(node, Status.PASS, f"NUMA node {own}", device=device)


def _single(check: NodeCheck, node: Snapshot) -> Finding:
    """One NUMA node: nothing to pair, unless a VM hides several."""
    if not pci.is_virtual(node):
        return check.finding(node, Status.PASS, "one NUMA node")
    return check.finding(
        node,
        Status.WARN,
        "one NUMA node, in a virtual machine",
        cause="if its host has several, devices and CPUs may be paired wrongly",
        remedy="switch vNUMA on, or give NCCL a topology file",
    )


def _allowed(text: str) -> frozenset[int]:
    match = ALLOWED.search(text)
    if match is None:
        raise ParseError(1, text.strip(), "Cpus_allowed_list", "/proc/self/status")
    return cpu_list(match[1], "/proc/self/status")


CHECK = NodeCheck(
    "numa",
    "GPU, NIC and CPUs of one NUMA node",
    Layer.HOST,
    (pci.CLASSES, pci.VENDORS, pci.CPUS, NODES, CPUS_OF_NODES, PROCESS),
    judge,
)
