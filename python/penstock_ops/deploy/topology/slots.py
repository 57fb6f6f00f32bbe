"""PCI devices as a machine has them, and which of them NCCL's file pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.core import InvalidValueError, PenstockError
from penstock_ops.deploy.topology.grammar import BRIDGE, GPU, NIC, NVSWITCH
from penstock_ops.deploy.topology.layout import Device, Pair, Socket
from penstock_ops.plan.hardware.pci import CpuModel, NodePci, PciIds

ADDRESS = re.compile(r"(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
GPU_VENDORS = ("0x10de", "0x1002")
"""NVIDIA and AMD. The display controller of a board's management has another vendor."""
RDMA_VENDORS = ("0x15b3",)
"""Vendors of adapters that are RDMA adapters without a look at /sys/class/infiniband."""
Wanted = Callable[[PciIds], bool]
INVENTED = "ffff:{:02x}:00.0"
"""Address of a bridge that stands for a pair and is in no machine: NCCL finds nothing in sysfs and
takes it as the file has it.
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """A device where a machine has it."""

    device: Device
    upstream: tuple[str, ...] = ()
    """Addresses of the bridges above it, from the root on."""
    numa: int = -1
    """NUMA node; -1 if the machine does not say, as virtual machines often do not."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine says of itself."""

    slots: tuple[Slot, ...]
    affinities: Mapping[int, str] = field(default_factory=dict)
    """CPUs by NUMA node, as in cpumap."""
    cpu: CpuModel | None = None

    @property
    def gpus(self) -> list[Slot]:
        return self._of(lambda ids: ids.kind.startswith(GPU) and ids.vendor in GPU_VENDORS)

    @property
    def nics(self) -> list[Slot]:
        return [
            slot
            for slot in self._of(lambda ids: ids.kind.startswith(NIC))
            if slot.device.name or slot.device.ids.vendor in RDMA_VENDORS
        ]

    @property
    def switches(self) -> tuple[Device, ...]:
        found = self._of(lambda ids: ids.kind.startswith(NVSWITCH) and ids.vendor in GPU_VENDORS)
        return tuple(slot.device for slot in found)

    def _of(self, wanted: Wanted) -> list[Slot]:
        found = [slot for slot in self.slots if wanted(slot.device.ids)]
        return sorted(found, key=lambda slot: slot.device.busid)


def address(flag: str, text: str) -> str:
    """A PCI address with its domain, in lower case."""
    found = ADDRESS.fullmatch(text.strip().lower())
    if not found:
        raise InvalidValueError(flag, text, "addresses such as 0000:04:00.0")
    return f"{found[1] or '0000'}:{found[2]}"


def sockets_of(machine: Machine, node: NodePci | None, count: int) -> list[Socket]:
    """Sockets with the pairs of a machine: by the bridges that GPU and adapter share, or, where
    they share none or all share one as in a virtual machine, in the order of their addresses.
    `count` is the number of sockets where the machine does not say; 0 for its NUMA nodes.
    PenstockError if the order pairs nothing.
    """
    groups = _by_bridge(machine)
    pairs = [_bridged(machine, port, *each) for port, each in groups.items()]
    if not groups:
        pairs = in_order(machine.gpus, machine.nics, node)
    by_bus = {slot.device.busid: slot.numa for slot in machine.slots}
    numas = [by_bus.get(pair.gpus[0].busid, -1) for pair in pairs]
    return seated(pairs, numas, machine, node, count)


def seated(
    pairs: Sequence[Pair],
    numas: Sequence[int],
    machine: Machine,
    node: NodePci | None,
    count: int,
) -> list[Socket]:
    """The pairs by NUMA node. Where those are not known, the sockets get equal numbers."""
    known = node.sockets if node else ()
    cpu = machine.cpu or (node.cpu if node else None)
    if any(numa < 0 for numa in numas) or count:
        sockets = count or len(known) or len(machine.affinities) or 1
        if len(pairs) % sockets:
            raise PenstockError(f"{len(pairs)} pairs for {sockets} sockets: give --sockets")
        each = len(pairs) // sockets
        numas = [place // each for place in range(len(pairs))]
    return [
        Socket(
            numa,
            tuple(pair for pair, own in zip(pairs, numas, strict=True) if own == numa),
            machine.affinities.get(numa, ""),
            cpu,
        )
        for numa in sorted(set(numas))
    ]


def in_order(gpus: Sequence[Slot], nics: Sequence[Slot], node: NodePci | None) -> list[Pair]:
    """GPUs and adapters paired in their orders, under bridges of the node type or invented ones."""
    if not gpus:
        raise PenstockError("no GPU among these devices, so NCCL needs no topology of them")
    if len(nics) % len(gpus):
        raise PenstockError(
            f"{len(gpus)} GPUs and {len(nics)} RDMA adapters on one bus: say which belong together "
            "with --pair GPU,NIC"
        )
    if node and node.pairs != len(gpus):
        raise PenstockError(f"{len(gpus)} GPUs; the node type has {node.pairs}")
    each = len(nics) // len(gpus)
    return [
        Pair(
            _bridge(place, gpu.device, node),
            (_linked(gpu.device, node),),
            tuple(_linked(nic.device, node) for nic in nics[place * each : (place + 1) * each]),
        )
        for place, gpu in enumerate(gpus)
    ]


def _linked(device: Device, node: NodePci | None) -> Device:
    """The device with the link of the node type: what a virtual machine says of its own is
    invented.
    """
    if node is None:
        return device
    return replace(device, link_speed=node.link_speed, link_width=node.link_width)


def _bridge(place: int, gpu: Device, node: NodePci | None) -> Device:
    if node is None:
        return replace(gpu, busid=INVENTED.format(place), ids=PciIds(BRIDGE), name="")
    bridge = [each for socket in node.sockets for each in socket][place]
    return Device(bridge.busid, bridge.ids, node.link_speed, node.link_width)


def _by_bridge(machine: Machine) -> dict[str, tuple[list[Slot], list[Slot]]]:
    """GPUs and adapters by the bridge at the root that both are below; empty where bridges do not
    tell pairs.
    """
    groups: dict[str, tuple[list[Slot], list[Slot]]] = {}
    for kind, slots in enumerate((machine.gpus, machine.nics)):
        for slot in slots:
            if not slot.upstream:
                return {}
            groups.setdefault(slot.upstream[0], ([], []))[kind].append(slot)
    paired = {port: group for port, group in groups.items() if all(group)}
    if len(machine.gpus) > 1 and len(groups) == 1:
        return {}
    return {port: group for port, group in groups.items() if group[0]} if paired else {}


def _bridged(machine: Machine, port: str, gpus: Sequence[Slot], nics: Sequence[Slot]) -> Pair:
    bridge = next((s.device for s in machine.slots if s.device.busid == port), Device(port))
    return Pair(bridge, tuple(slot.device for slot in gpus), tuple(slot.device for slot in nics))
