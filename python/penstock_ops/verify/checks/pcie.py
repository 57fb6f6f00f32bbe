"""Width and speed of PCIe links on the path from a host bridge to accelerators and NICs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock_ops.verify.checks import pci
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, only_line, only_whole
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Files

DIRECTORY = "/sys/bus/pci/devices/*"
SPEED = Files("pcie-speed", f"{DIRECTORY}/current_link_speed")
WIDTH = Files("pcie-width", f"{DIRECTORY}/current_link_width")
MOST_SPEED = Files("pcie-most-speed", f"{DIRECTORY}/max_link_speed")
MOST_WIDTH = Files("pcie-most-width", f"{DIRECTORY}/max_link_width")
RATE = re.compile(r"(\d+(?:\.\d)?) GT/s(?: PCIe)?")
UNKNOWN_SPEED = "Unknown"
INFINIBAND, ETHERNET = 0x0207, 0x0200
RESEAT = "reseat the device or its riser; check the slot's settings in the BIOS"


def speeds(evidence: Evidence) -> dict[str, float]:
    """GT per second by bus id, without devices whose speed the kernel does not know."""
    found: dict[str, float] = {}
    for path, text in evidence.files.items():
        line = only_line(text, path)
        if not line.startswith(UNKNOWN_SPEED):
            match = fields(line, 1, RATE, "a rate such as 32.0 GT/s PCIe")
            found[pci.bus_id(path)] = float(match[1])
    return found


def widths(evidence: Evidence) -> dict[str, int]:
    """Lanes by bus id, without devices that report 0 or 255 (no link)."""
    numbers = {pci.bus_id(path): only_whole(text, path) for path, text in evidence.files.items()}
    return {device: lanes for device, lanes in numbers.items() if 0 < lanes < 255}


def examined(node: Snapshot) -> list[str]:
    """Accelerators, and NICs of Mellanox and NVIDIA, by bus id."""
    vendors, classes = (pci.numbers(node[each.name]) for each in (pci.VENDORS, pci.CLASSES))
    nics = [
        device
        for device, number in classes.items()
        if vendors.get(device) == pci.MELLANOX and number >> 8 in (INFINIBAND, ETHERNET)
    ]
    found = pci.accelerators_on_bus(node) + pci.accelerators_on_bus(node, pci.AMD)
    return [*found, *sorted(nics)]


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    if not node[pci.CLASSES.name].is_present:
        yield check.absent(node, node[pci.CLASSES.name], is_needed=needs.devices > 0)
        return
    devices = examined(node)
    if not devices:
        yield check.finding(node, Status.SKIPPED, "no accelerator and no RDMA NIC on the PCI bus")
        return
    if pci.is_virtual(node):
        yield check.finding(
            node, Status.SKIPPED, "a virtual machine invents link speeds; see copy-rate"
        )
        return
    for source in (SPEED, WIDTH, MOST_SPEED, MOST_WIDTH):
        if not node[source.name].is_present:
            yield check.absent(node, node[source.name], is_needed=True)
            return
    now, most = speeds(node[SPEED.name]), speeds(node[MOST_SPEED.name])
    lanes, most_lanes = widths(node[WIDTH.name]), widths(node[MOST_WIDTH.name])
    paths = node[pci.PATHS.name].files
    for device in devices:
        path = [*pci.ancestors(paths, device), device]
        yield _width(check, node, path, lanes, most_lanes)
        yield _speed(check, node, path, now, most)


def _width(
    check: NodeCheck,
    node: Snapshot,
    path: list[str],
    now: Mapping[str, int],
    most: Mapping[str, int],
) -> Finding:
    """Lanes are trained at boot, idle or not: fewer than the device has are a fault."""
    device = path[-1]
    if device not in now or device not in most:
        return check.finding(
            node,
            Status.UNKNOWN,
            "its width is not in sysfs",
            device=device,
            remedy="rescan the bus, or reboot: the device may be gone",
        )
    narrowest = min((now[each], each) for each in path if each in now)
    bound = Bound(None, most[device], "lanes", formula="lanes of the device")
    return check.measured(
        node,
        narrowest[0],
        bound,
        "narrowest link of its path",
        device=device,
        cause=f"the link of {narrowest[1]} has fewer lanes than the device",
        remedy=RESEAT,
    )


def _speed(
    check: NodeCheck,
    node: Snapshot,
    path: list[str],
    now: Mapping[str, float],
    most: Mapping[str, float],
) -> Finding:
    """An idle device lowers its own speed, so bridges above it are judged by what they can do."""
    device = path[-1]
    if device not in most or device not in now:
        return check.finding(
            node,
            Status.UNKNOWN,
            "its speed is not in sysfs",
            device=device,
            remedy="rescan the bus, or reboot: the device may be gone",
        )
    slowest = min((most[each], each) for each in path if each in most)
    bound = Bound(None, most[device], "GT/s", formula="highest speed of the device")
    return check.measured(
        node,
        slowest[0],
        bound,
        f"slowest link of its path can do (now {now[device]:g})",
        device=device,
        cause=f"{slowest[1]} cannot do more",
        remedy="use a slot of its generation",
    )


CHECK = NodeCheck(
    "pcie",
    "width and speed of PCIe links up to the host bridge",
    Layer.FABRIC,
    (pci.CLASSES, pci.VENDORS, pci.PATHS, pci.CPUS, SPEED, WIDTH, MOST_SPEED, MOST_WIDTH),
    judge,
)
