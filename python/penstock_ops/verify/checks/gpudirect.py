"""Whether RDMA adapters can read GPU memory: by the peer memory module, or by dma-buf."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks import driver, hca, pci
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, only_line
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files

PEER_MODULE = Files("peer-module", "/sys/module/nvidia_peermem/version")
PEER_CLIENT = Files("peer-client", "/sys/kernel/mm/memory_peers/*/version")
RELEASE = Files("kernel-release", "/proc/sys/kernel/osrelease")
NUMBERS = re.compile(r"(\d{1,3})\.(\d{1,4})\..*")
OPEN_MODULE = "Open Kernel Module"
OLDEST_KERNEL, OLDEST_DRIVER = (5, 12), 515
"""First versions with dma-buf for GPU memory (NVIDIA's GPU operator, GPUDirect RDMA)."""


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if not node[hca.STATE.name].is_present or not pci.accelerators_on_bus(node):
        is_needed = bool(needs.fabric_resources) and needs.devices > 0
        status = Status.UNKNOWN if is_needed else Status.SKIPPED
        yield check.finding(
            node,
            status,
            "no GPU beside an RDMA adapter",
            remedy="see the checks devices and hca",
        )
        return
    for source in (PEER_MODULE, PEER_CLIENT):
        if node[source.name].is_present:
            path, text = next(iter(node[source.name].files.items()))
            version = only_line(text, path)
            yield check.finding(node, Status.PASS, f"peer memory module {version}")
            return
    for source in (driver.KERNEL, RELEASE):
        if not node[source.name].is_present:
            yield check.absent(node, node[source.name], is_needed=needs.nodes > 1)
            return
    yield _buffers(check, node)


def _buffers(check: NodeCheck, node: Snapshot) -> Finding:
    """dma-buf needs the open kernel module, and a driver and a kernel that are new enough."""
    text = next(iter(node[driver.KERNEL.name].files.values()))
    version = driver.kernel_version(text)
    path, release = next(iter(node[RELEASE.name].files.items()))
    numbers = fields(only_line(release, path), 1, NUMBERS, "a version such as 6.8.0-31-generic")
    kernel = (int(numbers[1]), int(numbers[2]))
    is_open = OPEN_MODULE in text.split("\n", 1)[0]
    if is_open and int(version.split(".")[0]) >= OLDEST_DRIVER and kernel >= OLDEST_KERNEL:
        return check.finding(node, Status.PASS, f"dma-buf: open module {version}, kernel {release}")
    return check.finding(
        node,
        Status.WARN,
        "neither peer memory nor dma-buf",
        cause="adapters cannot read GPU memory: NCCL copies through host memory",
        remedy="install the driver's open kernel module, or modprobe nvidia-peermem",
        evidence=text.split("\n", 1)[0],
    )


CHECK = NodeCheck(
    "gpudirect",
    "peer memory or dma-buf, for RDMA from GPU memory",
    Layer.FABRIC,
    (pci.CLASSES, pci.VENDORS, hca.STATE, PEER_MODULE, PEER_CLIENT, driver.KERNEL, RELEASE),
    judge,
)
