"""What NCCL's reader of topology files knows: elements, attributes, limits, classes and speeds.

Source: NVIDIA/nccl 2.30.7 (commit 5067397), src/graph/xml.cc, xml.h and topo.cc. The reader is no
XML parser: it has no declaration, no entities and no text, and ends a tag at a line break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.core import PenstockError, shortened

MOST_ELEMENTS = 255
"""Elements in a file: the reader has room for 256, and ends when the last one is taken."""
MOST_CHILDREN = 640
MOST_ATTRIBUTES = 16
"""Attributes of an element. The reader drops further ones."""
LONGEST = 253
"""Characters of a name or value."""
VERSION = 1
"""Value that the attribute `version` of `system` must have."""

CHILDREN: Mapping[str, tuple[str, ...]] = {
    "": ("system",),
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "c2c"),
    "nic": ("net",),
}
"""Elements that the reader keeps, by their parent. It skips others with all that they contain."""

_NET = "name dev latency speed port guid maxconn gdr coll net gin rma rail plane keep"
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "system": ("version", "name"),
    "cpu": ("numaid", "affinity", "arch", "vendor", "familyid", "modelid", "host_hash"),
    "pci": (
        *("busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device"),
        *("link_speed", "link_width"),
    ),
    "gpu": ("dev", "sm", "rank", "gdr", "mlopart"),
    "nvlink": ("target", "count", "tclass"),
    "c2c": ("bw", "count"),
    "nic": (),
    "net": tuple(_NET.split()),
    "pcilink": ("target",),
}

BRIDGE, NVSWITCH, CPU_LINK, GPU, NIC, INFINIBAND = (
    *("0x060400", "0x068000", "0x068001"),
    *("0x03", "0x02", "0x020700"),
)
"""PCI classes, or their beginnings, as sysfs prints them."""
SPEEDS: Mapping[str, int] = {
    "2.5 GT/s": 15,
    "5 GT/s": 30,
    "8 GT/s": 60,
    "16 GT/s": 120,
    "32 GT/s": 240,
    "5.0 GT/s PCIe": 30,
    "8.0 GT/s PCIe": 60,
    "16.0 GT/s PCIe": 120,
    "32.0 GT/s PCIe": 240,
    "64.0 GT/s PCIe": 480,
}
"""Rate of a lane in units of 100 Mb/s, by the beginning of `link_speed`. NCCL reads any other text
as 8 GT/s (topo.cc, kvDictPciGen).
"""
OTHER_SPEED = 60


_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")


class TopologyError(PenstockError):
    """NCCL ends reading a topology file here. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"line {line}, column {column}: {text}")
        self.line, self.column, self.text = line, column, text


@dataclass(frozen=True, slots=True)
class Notice:
    """What NCCL reads differently from what the file shows, without ending."""

    line: int
    text: str


@dataclass(slots=True)
class Element:
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)
    line: int = 0

    def descendants(self) -> Iterator[Element]:
        """All elements below this one, in the order of the file."""
        for child in self.children:
            yield child
            yield from child.descendants()

    def every(self, name: str) -> Iterator[Element]:
        """The descendants with this name."""
        return (each for each in self.descendants() if each.name == name)

    def get(self, name: str) -> str:
        """An attribute's value; empty if it is missing."""
        return self.attributes.get(name, "")


def lane_rate(speed: str) -> int:
    """Rate of a lane in units of 100 Mb/s, as NCCL reads a `link_speed`."""
    return next((rate for head, rate in SPEEDS.items() if speed.startswith(head)), OTHER_SPEED)


def knows_speed(speed: str) -> bool:
    return any(speed.startswith(head) for head in SPEEDS)


def c_number(text: str) -> int | None:
    """The number at the beginning of a text, as C's strtol reads it with base 0; None without one,
    which C reads as 0.
    """
    found = _NUMBER.match(text)
    if not found:
        return None
    sign, hexadecimal, octal, decimal = found.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -value if sign == "-" else value


def shown(text: str) -> str:
    """A part of a file for a message: short, with control characters escaped."""
    return printable(shortened(text))


def printable(text: str) -> str:
    """`text` with control characters and the like as escapes."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
