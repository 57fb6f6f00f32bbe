"""Whether an IOMMU translates the addresses of devices."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.verify.checks import pci, pcie
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import only_line
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files, Links

GROUPS = Links("iommu-groups", "/sys/kernel/iommu_groups/*")
KERNEL_LINE = Files("kernel-line", "/proc/cmdline")
PASSTHROUGH = {"iommu=pt", "iommu.passthrough=1"}


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if not pcie.examined(node):
        yield check.finding(node, Status.SKIPPED, "no accelerator and no RDMA NIC on the PCI bus")
        return
    if pci.is_virtual(node):
        yield check.finding(node, Status.SKIPPED, "the IOMMU of a virtual machine's host decides")
        return
    source = node[KERNEL_LINE.name]
    if not source.is_present:
        yield check.absent(node, source, is_needed=False)
        return
    line = only_line(next(iter(source.files.values())), "/proc/cmdline")
    groups = node[GROUPS.name]
    if not groups.is_present:
        yield check.finding(node, Status.PASS, "no IOMMU is active")
    elif PASSTHROUGH & set(line.split()):
        yield check.finding(node, Status.PASS, "the IOMMU passes addresses through")
    else:
        yield check.finding(
            node,
            Status.WARN,
            f"the IOMMU translates, in {len(groups.files)} groups",
            cause="each copy between devices is translated, or goes through the CPU",
            remedy="kernel line iommu=pt, or switch it off in the BIOS; GPUDirect Storage needs it",
            evidence=line,
        )


CHECK = NodeCheck(
    "iommu",
    "whether an IOMMU translates addresses of devices",
    Layer.FABRIC,
    (pci.CLASSES, pci.VENDORS, pci.CPUS, GROUPS, KERNEL_LINE),
    judge,
)
