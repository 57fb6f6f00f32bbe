"""Reads the PCI devices of a machine from the output of `lspci -D -nn -vv`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.core import PenstockError
from penstock_ops.deploy.topology.layout import Device
from penstock_ops.deploy.topology.slots import Machine, Slot
from penstock_ops.plan.hardware.pci import PciIds

HEAD = re.compile(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)")
NUMBERS = re.compile(r".*?\[([0-9a-f]{4})\]: .*\[([0-9a-f]{4}):([0-9a-f]{4})\].*")
SUBSYSTEM = re.compile(r"\s+Subsystem: .*\[([0-9a-f]{4}):([0-9a-f]{4})\].*")
BEHIND = re.compile(r"\s+Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=.*")
LINK = re.compile(r"\s+LnkCap:.*Speed ([0-9.]+)GT/s.*Width x([0-9]{1,2})\b.*")
NUMA = re.compile(r"\s+NUMA node: ([0-9]{1,6})")
RULE = "run lspci -D -nn -vv, as root for links"


@dataclass(slots=True)
class _Block:
    """The lines of one device."""

    busid: str
    ids: dict[str, str] = field(default_factory=dict)
    secondary: str = ""
    """Bus behind a bridge, with its domain; empty for other devices."""
    speed: str = ""
    width: int = 0
    numa: int = -1


def parse_lspci(text: str) -> Machine:
    """The devices in lspci's output. PenstockError where numbers are missing."""
    blocks = [*_blocks(text)]
    if not blocks:
        raise PenstockError(f"no device in this text: {RULE}")
    behind = {block.secondary: block.busid for block in blocks if block.secondary}
    return Machine(tuple(_slot(block, behind) for block in blocks))


def _slot(block: _Block, behind: dict[str, str]) -> Slot:
    upstream: list[str] = []
    bus = block.busid[:7]
    while bus in behind and behind[bus] not in upstream:
        upstream.insert(0, behind[bus])
        bus = behind[bus][:7]
    device = Device(block.busid, PciIds(**block.ids), block.speed, block.width)
    return Slot(device, tuple(upstream), block.numa)


def _blocks(text: str) -> Iterator[_Block]:
    block: _Block | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if head := HEAD.fullmatch(line):
            if block:
                yield block
            block = _head(head[1], head[2], number)
        elif block:
            _detail(block, line)
    if block:
        yield block


def _head(busid: str, rest: str, line: int) -> _Block:
    numbers = NUMBERS.fullmatch(rest)
    if not numbers:
        raise PenstockError(f"line {line}: {busid} has no numbers in brackets: {RULE}")
    kind, vendor, device = numbers.groups()
    full = busid if busid.count(":") == 2 else f"0000:{busid}"
    ids = {"kind": f"0x{kind}00", "vendor": f"0x{vendor}", "device": f"0x{device}"}
    return _Block(full, ids)


def _detail(block: _Block, line: str) -> None:
    if found := SUBSYSTEM.fullmatch(line):
        block.ids |= {"subsystem_vendor": f"0x{found[1]}", "subsystem_device": f"0x{found[2]}"}
    elif found := BEHIND.fullmatch(line):
        block.secondary = f"{block.busid[:5]}{found[1]}"
    elif found := LINK.fullmatch(line):
        # sysfs has "32.0 GT/s PCIe" where lspci has "32GT/s", which NCCL reads as Gen3.
        block.speed, block.width = f"{float(found[1]):.1f} GT/s PCIe", int(found[2])
    elif found := NUMA.fullmatch(line):
        block.numa = int(found[1])
