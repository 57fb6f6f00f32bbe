"""PCI devices of a node type: which GPU and adapter share a bridge, sockets, NVSwitches.

A node's file has them in the member `pci`. Only a few are known, because most clouds already show
the topology to a virtual machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.config.documents import read_document
from penstock.config.forms import members
from penstock.core import InvalidValueError, PenstockError
from penstock_ops.plan.hardware import ROOT, names
from penstock_ops.plan.hardware.pci_form import PCI

NODES: Final = "nodes"


@dataclass(frozen=True, slots=True)
class PciIds:
    """Numbers of a device as sysfs prints them, such as `0x10de`; empty if they are unknown."""

    kind: str = ""
    """PCI class."""
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""


@dataclass(frozen=True, slots=True)
class Bridge:
    """The bridge of one GPU and its adapter."""

    busid: str
    ids: PciIds


@dataclass(frozen=True, slots=True)
class CpuModel:
    """A processor by CPUID. NCCL estimates the rate between Intel's sockets from family and
    model.
    """

    arch: str
    vendor: str
    family: int
    model: int


@dataclass(frozen=True, slots=True)
class NodePci:
    """The PCI devices of a node type, in the order in which a virtual machine gets them."""

    sockets: tuple[tuple[Bridge, ...], ...]
    """Bridges by socket, each with one GPU and one adapter."""
    cpu: CpuModel
    link_speed: str
    """As in sysfs, such as `32.0 GT/s PCIe`."""
    link_width: int
    """Lanes of each GPU and adapter."""
    gpu: PciIds
    capability: int
    """Compute capability of the GPU, 90 for 9.0."""
    nic: PciIds
    nic_mbps: int
    """Rate of an adapter in Mb/s."""
    switch: PciIds
    nvlinks: tuple[int, ...]
    """Number of a GPU's NVLinks to each NVSwitch; empty without NVSwitches."""
    source: str

    @property
    def pairs(self) -> int:
        return sum(map(len, self.sockets))


def node_pci(word: str) -> NodePci:
    """The PCI devices of a known node type, or of the user's file named by `word`. Raises
    PenstockError for a node whose file has no member `pci`.
    """
    known = with_pci()
    if word.endswith((".yaml", ".yml")):
        row = read_document(Path(word))
    elif word in known:
        row = _row(ROOT / NODES / f"{word}.yaml")
    else:
        raise InvalidValueError(
            "--node-type", word, f"one of {', '.join(known)}, or FILE.yaml with a member pci"
        )
    try:
        members({"pci": PCI})(word, row)
    except PenstockError as error:
        raise PenstockError(f"{error}; {known[0]}.yaml of the package is an example") from None
    found: Any = row["pci"]
    if found["nvlinks"] and not found["nvswitch"]:
        raise PenstockError(f"{word}: pci.nvlinks are to NVSwitches, and pci.nvswitch is missing")
    return _node(found)


def with_pci() -> list[str]:
    """Names of the known nodes whose PCI devices are known."""
    return [name for name in names(NODES) if "pci" in _row(ROOT / NODES / f"{name}.yaml")]


def _row(path: Path) -> dict[str, Any]:
    """The row of a hardware file of this package. Its dates have another type than the text in a
    user's file.
    """
    row: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return row


def _node(row: Mapping[str, Any]) -> NodePci:
    bridge = row["bridge"]
    return NodePci(
        sockets=tuple(
            tuple(Bridge(each["busid"], _ids({**bridge, **each})) for each in socket)
            for socket in row["sockets"]
        ),
        cpu=CpuModel(**row["cpu"]),
        link_speed=row["link_speed"],
        link_width=row["link_width"],
        gpu=_ids(row["gpu"]),
        capability=row["capability"],
        nic=_ids(row["nic"]),
        nic_mbps=row["nic_mbps"],
        switch=_ids(row["nvswitch"] or {}),
        nvlinks=tuple(row["nvlinks"]),
        source=row["source"],
    )


def _ids(row: Mapping[str, Any]) -> PciIds:
    numbers = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")
    return PciIds(*(row.get(name, "") for name in numbers))


def bar_gib(accelerator: str) -> int:
    """GiB of the large BAR of a known accelerator, through which other devices reach its memory;
    0 if it is not known.
    """
    path = ROOT / "accelerators" / f"{accelerator}.yaml"
    return int(_row(path).get("bar_gib", 0)) if accelerator in names("accelerators") else 0
