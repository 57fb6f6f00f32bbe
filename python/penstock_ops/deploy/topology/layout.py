"""The PCI devices of a machine by socket and pair, and NCCL's tree of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from penstock.core import PenstockError
from penstock_ops.deploy.topology.grammar import BRIDGE, NVSWITCH, VERSION, Element
from penstock_ops.plan.hardware.pci import CpuModel, NodePci, PciIds

MOST_CONNECTIONS = 131072
"""Value of `maxconn` that NCCL's InfiniBand transport reports (NVIDIA/nccl, MAX_REQUESTS of
transport/net_ib; source 002 prints it).
"""
UNKNOWN = PciIds()
Numbers = tuple[Iterator[int], Iterator[int]]
"""The next number of a GPU, and of an adapter."""
CLAIMS = ("nvlink", "gdr", "net")
"""Facts that NCCL detects, and that a file may state in place of it."""


@dataclass(frozen=True, slots=True)
class Device:
    busid: str
    ids: PciIds = UNKNOWN
    link_speed: str = ""
    link_width: int = 0
    name: str = ""
    """Name of an adapter in /sys/class/infiniband; empty if it is unknown."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Devices under one bridge, in the order of the file."""

    bridge: Device
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Socket:
    numa: int
    pairs: tuple[Pair, ...]
    affinity: str = ""
    """CPUs as words of hex digits, as in cpumap; empty if NCCL is to read them."""
    cpu: CpuModel | None = None


@dataclass(frozen=True, slots=True)
class Claims:
    """What the file states about devices besides their places. NCCL does not check it."""

    capability: int = 0
    """Compute capability of the GPUs, 90 for 9.0; 0 to let NCCL ask them."""
    nvlinks: tuple[int, ...] = ()
    """Number of each GPU's links to each NVSwitch."""
    switches: tuple[Device, ...] = ()
    gdr: bool = False
    nic_mbps: int = 0
    """Rate of the adapters in Mb/s; 0 to let NCCL ask them."""


def tree(sockets: Sequence[Socket], claims: Claims) -> Element:
    """NCCL's tree of the sockets. PenstockError without a GPU."""
    if not any(pair.gpus for socket in sockets for pair in socket.pairs):
        raise PenstockError("no GPU among these devices, so NCCL needs no topology of them")
    numbers = count(), count()
    return Element(
        "system",
        {"version": str(VERSION)},
        [_cpu(socket, claims, numbers) for socket in sockets if socket.pairs],
    )


def _cpu(socket: Socket, claims: Claims, numbers: Numbers) -> Element:
    given = {"numaid": str(socket.numa)}
    if socket.affinity:
        given["affinity"] = socket.affinity
    if cpu := socket.cpu:
        given |= {"arch": cpu.arch, "vendor": cpu.vendor}
        given |= {"familyid": str(cpu.family), "modelid": str(cpu.model)}
    return Element("cpu", given, [_pair(pair, claims, numbers) for pair in socket.pairs])


def _pair(pair: Pair, claims: Claims, numbers: Numbers) -> Element:
    bridge = _pci(pair.bridge)
    gpus, nics = numbers
    bridge.children += [_gpu(gpu, claims, next(gpus)) for gpu in pair.gpus]
    bridge.children += [_nic(nic, claims, next(nics)) for nic in pair.nics]
    return bridge


def _gpu(device: Device, claims: Claims, number: int) -> Element:
    pci = _pci(device)
    given = {}
    if claims.nvlinks or claims.gdr:
        given = {"dev": str(number), "sm": str(claims.capability), "rank": str(number)}
    if claims.gdr:
        given["gdr"] = "1"
    if given:
        pci.children.append(Element("gpu", given, [*_nvlinks(claims)]))
    return pci


def _nvlinks(claims: Claims) -> Iterator[Element]:
    for switch, number in zip(claims.switches, claims.nvlinks, strict=True):
        given = {"target": switch.busid, "count": str(number), "tclass": NVSWITCH}
        yield Element("nvlink", given)


def _nic(device: Device, claims: Claims, number: int) -> Element:
    pci = _pci(device)
    if not device.name:
        return pci
    given = {"name": device.name}
    if claims.nic_mbps:
        given |= {"dev": str(number), "latency": "0", "speed": str(claims.nic_mbps), "port": "1"}
        given["maxconn"] = str(MOST_CONNECTIONS)
    if claims.gdr:
        given["gdr"] = "1"
    pci.children.append(Element("nic", {}, [Element("net", given)]))
    return pci


def _pci(device: Device) -> Element:
    ids = device.ids
    given = {
        "busid": device.busid,
        "class": ids.kind or BRIDGE,
        "vendor": ids.vendor,
        "device": ids.device,
        "subsystem_vendor": ids.subsystem_vendor,
        "subsystem_device": ids.subsystem_device,
        "link_speed": device.link_speed,
        "link_width": str(device.link_width or ""),
    }
    return Element("pci", {name: text for name, text in given.items() if text})


def of_node(node: NodePci, bus: str, *, named: bool) -> tuple[list[Socket], tuple[Device, ...]]:
    """Sockets and NVSwitches of a virtual machine that has all devices of a node: on one bus, such
    as `0000:04`, in the order GPU 0, NIC 0, GPU 1, ... and the NVSwitches (source 002, 10.1).
    """
    addresses = [f"{bus}:{slot:02x}.0" for slot in range(2 * node.pairs + len(node.nvlinks))]
    sockets, pair = [], 0
    for numa, bridges in enumerate(node.sockets):
        pairs = []
        for bridge in bridges:
            gpu, nic = addresses[2 * pair : 2 * pair + 2]
            name = f"mlx5_{pair}" if named else ""
            pairs.append(
                Pair(
                    linked(node, bridge.busid, bridge.ids),
                    (linked(node, gpu, node.gpu),),
                    (linked(node, nic, node.nic, name),),
                )
            )
            pair += 1
        sockets.append(Socket(numa, tuple(pairs), cpu=node.cpu))
    return sockets, tuple(Device(busid, node.switch) for busid in addresses[2 * pair :])


def linked(node: NodePci, busid: str, ids: PciIds, name: str = "") -> Device:
    """A device with the link of the node's slots."""
    return Device(busid, ids, node.link_speed, node.link_width, name)
