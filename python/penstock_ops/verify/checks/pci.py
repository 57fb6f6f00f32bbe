"""Devices of the PCI bus from sysfs, which checks share, and whether the machine is virtual."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock_ops.verify.checks.parsing import only_line
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Evidence, Snapshot
from penstock_ops.verify.sources import Files, Links

CLASSES = Files("pci-class", "/sys/bus/pci/devices/*/class")
VENDORS = Files("pci-vendor", "/sys/bus/pci/devices/*/vendor")
PATHS = Links("pci-path", "/sys/bus/pci/devices/*")
"""Real paths, whose parts are the bridges above a device."""
CPUS = Files("cpuinfo", "/proc/cpuinfo")
NVIDIA, AMD, MELLANOX = 0x10DE, 0x1002, 0x15B3
ACCELERATOR_CLASSES = {NVIDIA: (0x0302,), AMD: (0x0380, 0x1200)}
"""Base class and subclass: a 3D controller, another display controller, an accelerator. Graphics
cards with a monitor (0x0300) count where the driver lists them only.
"""
HEXADECIMAL = re.compile(r"0x([0-9a-f]{4}|[0-9a-f]{6})")
BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def bus_id(path: str) -> str:
    """The device of a path such as /sys/bus/pci/devices/0000:19:00.0/class."""
    return path.split("/")[5]


def numbers(evidence: Evidence) -> dict[str, int]:
    """Hexadecimal values by bus id."""
    found: dict[str, int] = {}
    for path, text in evidence.files.items():
        line = only_line(text, path)
        if not HEXADECIMAL.fullmatch(line):
            raise ParseError(1, line, "a hexadecimal number", path)
        found[bus_id(path)] = int(line, 16)
    return found


def accelerators_on_bus(node: Snapshot, vendor: int = NVIDIA) -> list[str]:
    """Bus ids of accelerators of a vendor, sorted."""
    vendors = numbers(node[VENDORS.name])
    return sorted(
        device
        for device, number in numbers(node[CLASSES.name]).items()
        if vendors.get(device) == vendor and number >> 8 in ACCELERATOR_CLASSES[vendor]
    )


def is_virtual(node: Snapshot) -> bool:
    """Whether the CPUs have the flag of a hypervisor."""
    text = "\n".join(node[CPUS.name].files.values())
    return bool(re.search(r"^flags\s*:.* hypervisor( |$)", text, re.MULTILINE))


def ancestors(paths: Mapping[str, str], device: str) -> list[str]:
    """Bus ids of the bridges above a device, from the root port down; empty if unknown."""
    for path, target in paths.items():
        if bus_id(path) == device:
            return [part for part in target.split("/") if BUS_ID.fullmatch(part)][:-1]
    return []
