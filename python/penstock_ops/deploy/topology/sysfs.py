"""Reads the PCI devices of a machine from /sys and /proc, or from a copy of them below a root."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from penstock.core import PenstockError
from penstock_ops.deploy.topology.layout import Device
from penstock_ops.deploy.topology.slots import Machine, Slot
from penstock_ops.plan.hardware.pci import CpuModel, PciIds

DEVICES = "sys/bus/pci/devices"
NODES = "sys/devices/system/node"
CPUINFO = "proc/cpuinfo"
BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
IDS = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
ARCHITECTURES = {"GenuineIntel": "x86_64", "AuthenticAMD": "x86_64"}


def read_machine(root: Path) -> Machine:
    """The PCI devices of the machine whose /sys and /proc are below `root`. PenstockError if there
    are none to read.
    """
    folder = root / DEVICES
    try:
        names = sorted(path.name for path in folder.iterdir() if BUS_ID.fullmatch(path.name))
    except OSError as error:
        raise PenstockError(f"{folder}: {error.strerror}; --here needs /sys") from error
    slots = tuple(_slot(folder / name) for name in names)
    return Machine(slots, _affinities(root / NODES), _cpu(root / CPUINFO))


def _slot(path: Path) -> Slot:
    real = path.resolve()
    upstream = tuple(part for part in real.parent.parts if BUS_ID.fullmatch(part))
    numa = read_text(real / "numa_node")
    return Slot(
        Device(
            path.name,
            PciIds(*(read_text(real / name) for name in IDS)),
            read_text(real / "max_link_speed"),
            _width(read_text(real / "max_link_width")),
            next((each.name for each in _entries(real / "infiniband")), ""),
        ),
        upstream,
        int(numa) if re.fullmatch(r"-?[0-9]{1,6}", numa) else -1,
    )


def _width(text: str) -> int:
    """Lanes. A virtual machine prints 0 or 255 where it has no link."""
    return int(text) if re.fullmatch("[0-9]{1,3}", text) and 0 < int(text) <= 32 else 0


def _affinities(folder: Path) -> Mapping[int, str]:
    found = {}
    for path in _entries(folder):
        mask = read_text(path / "cpumap")
        if (number := re.fullmatch("node([0-9]{1,6})", path.name)) and mask.strip("0,"):
            found[int(number[1])] = mask
    return dict(sorted(found.items()))


def _cpu(path: Path) -> CpuModel | None:
    """Family and model of the first processor; None where /proc/cpuinfo has none, as on Arm."""
    found: dict[str, str] = {}
    for line in read_text(path).splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    vendor = found.get("vendor_id", "")
    family, model = found.get("cpu family", ""), found.get("model", "")
    if vendor not in ARCHITECTURES or not (family.isdecimal() and model.isdecimal()):
        return None
    return CpuModel(ARCHITECTURES[vendor], vendor, int(family), int(model))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def read_text(path: Path) -> str:
    """Content of a file without its line end; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
