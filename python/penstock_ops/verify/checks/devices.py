"""Whether all accelerators of the plan are present: on the PCI bus, and for the driver."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.verify.checks import nvidia, pci
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.expected import of_accelerator
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs

FALLEN = "a device fell off the bus (Xid 79), or its driver did not start"
RESET = "read the kernel log for Xid; reset the device, else reboot"


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    inventory, findings = nvidia.gpus(check, node, needs)
    if findings:
        yield from _other_vendor(check, node, needs) or findings
        return
    on_bus = pci.accelerators_on_bus(node)
    listed = {gpu.bus_id for gpu in inventory.gpus}
    for device in on_bus:
        if device not in listed:
            # A warning: a pod sees the whole bus of its node, but only the devices granted to it.
            yield check.finding(
                node,
                Status.WARN,
                "on the PCI bus, unknown to the driver",
                device=device,
                cause=f"{FALLEN}; or it is not granted to this container",
                remedy=RESET,
            )
    bound = Bound(needs.devices or None, None, "devices", formula="ranks of the plan on a node")
    yield check.measured(
        node,
        len(listed),
        bound,
        "GPUs of the driver",
        cause=FALLEN,
        remedy=f"{RESET}; in a pod, request the devices of the plan",
    )
    # Hardware of the user's own has names that no driver reports.
    if of_accelerator(needs.accelerator):
        for gpu in inventory.gpus:
            if gpu.accelerator != needs.accelerator:
                yield _other_type(check, node, needs, gpu)


def _other_type(check: NodeCheck, node: Snapshot, needs: Needs, gpu: nvidia.Gpu) -> Finding:
    if not gpu.accelerator:
        return check.finding(
            node,
            Status.UNKNOWN,
            f"unknown product {gpu.product!r}, the plan is for {needs.accelerator}",
            device=gpu.bus_id,
            remedy="compare the two by hand; plan for hardware of your own with --on FILE.yaml",
        )
    return check.finding(
        node,
        Status.FAIL,
        f"{gpu.product}, the plan is for {needs.accelerator}",
        device=gpu.bus_id,
        cause="another type of node than the plan's",
        remedy="choose nodes of the planned type, or plan again with --on",
    )


def _other_vendor(check: NodeCheck, node: Snapshot, needs: Needs) -> list[Finding]:
    """The count of AMD's accelerators, whose driver has no check here."""
    on_bus = pci.accelerators_on_bus(node, pci.AMD)
    if not on_bus:
        return []
    bound = Bound(needs.devices or None, None, "devices", formula="ranks of the plan on a node")
    return [
        check.measured(
            node,
            len(on_bus),
            bound,
            "accelerators of AMD on the PCI bus",
            cause="a device is lost",
            remedy="reboot the node; read the kernel log of amdgpu",
        )
    ]


CHECK = NodeCheck(
    "devices",
    "accelerators of the plan, on the PCI bus and for the driver",
    Layer.DEVICE,
    nvidia.SOURCES,
    judge,
)
