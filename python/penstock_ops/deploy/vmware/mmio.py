"""Memory-mapped IO of a virtual machine: the size of `pciPassthru.64bitMMIOSizeGB`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.core import PenstockError
from penstock_ops.deploy.topology.slots import Machine
from penstock_ops.deploy.topology.sysfs import DEVICES, read_text

RESERVE_GIB = 32
"""Least that source 002 (10.1) reserves for adapters and the rest."""
GIB = 2**30
MEMORY_64 = 0x00100000
"""Flag of a 64-bit memory region in sysfs `resource` (linux/ioport.h, IORESOURCE_MEM_64)."""
LINE = re.compile(r"0x([0-9a-f]{16}) 0x([0-9a-f]{16}) 0x([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Mmio:
    """A size in GiB, and how it comes about."""

    size: int
    rule: str
    other_rule: str
    """The rule of Broadcom's KB 323402, for comparison."""


def of_bars(gpus: int, bar_gib: int, memory_gib: int) -> Mmio:
    """The size for GPUs whose large BAR has `bar_gib` GiB and whose memory has `memory_gib`."""
    total = gpus * bar_gib
    rule = f"{gpus} GPUs x {bar_gib} GiB of BAR = {total}, + {RESERVE_GIB} for all else"
    return Mmio(total + RESERVE_GIB, rule, _other(gpus, memory_gib))


def of_machine(machine: Machine, root: Path, memory_gib: int) -> Mmio:
    """The size from the 64-bit regions that the devices of a machine have. PenstockError if a GPU
    has none.
    """
    devices = [slot.device.busid for slot in (*machine.gpus, *machine.nics)]
    devices += [device.busid for device in machine.switches]
    sizes = {busid: _regions(root / DEVICES / busid / "resource") for busid in devices}
    empty = [slot.device.busid for slot in machine.gpus if not sizes[slot.device.busid]]
    if empty or not machine.gpus:
        raise PenstockError(
            f"{root / DEVICES}: {f'GPU {empty[0]} has no 64-bit BAR' if empty else 'no GPU'}: read "
            "the ESX host's hardware under Linux, or give --bar-gib"
        )
    total = -(-sum(sizes.values()) // GIB)
    rule = f"64-bit BARs of {len(devices)} devices = {total} GiB, + {RESERVE_GIB} for all else"
    return Mmio(total + RESERVE_GIB, rule, _other(len(machine.gpus), memory_gib))


def _regions(path: Path) -> int:
    """Bytes of a device's 64-bit memory regions."""
    found = 0
    for line in read_text(path).splitlines():
        if match := LINE.fullmatch(line.strip()):
            start, end, flags = (int(part, 16) for part in match.groups())
            if flags & MEMORY_64 and end > start:
                found += end - start + 1
    return found


def _other(gpus: int, memory_gib: int) -> str:
    frame = gpus * memory_gib
    power = 1 << (frame - 1).bit_length()
    return (
        f"Broadcom's KB 323402 counts {gpus} x {memory_gib} GiB of memory = {frame}, up to the "
        f"next power of two, doubled: {2 * power}. Larger than needed is a slower boot."
    )
