"""Rules that compare a topology file with a node type, or with the machine that will read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from penstock_ops.deploy.topology.faults import (
    ERROR,
    NOTE,
    WARNING,
    WORDS,
    Fault,
    Rule,
    is_gpu,
    is_nic,
    mask,
)
from penstock_ops.deploy.topology.grammar import INFINIBAND, Element, c_number
from penstock_ops.deploy.topology.slots import Machine
from penstock_ops.deploy.topology.sysfs import read_text
from penstock_ops.plan.hardware.pci import NodePci

INFINIBAND_FOLDER = "sys/class/infiniband"
PEER_MEMORY = "sys/module/nvidia_peermem"


def of_node_type(node: NodePci) -> Rule:
    def rule(system: Element) -> Iterator[Fault]:
        every = [*system.every("pci")]
        gpus, nics = [p for p in every if is_gpu(p)], [p for p in every if is_nic(p)]
        yield from _counted(system, "GPUs", len(gpus), node.pairs)
        yield from _counted(system, "NICs", len(nics), node.pairs)
        yield from _counted(system, "sockets", len([*system.every("cpu")]), len(node.sockets))
        for pci in nics:
            kind = pci.get("class")
            if node.nic.kind == INFINIBAND and kind and not kind.startswith(INFINIBAND):
                text = f'class {kind} of a NIC: the node type has InfiniBand, "{INFINIBAND}"'
                yield Fault(WARNING, pci.line, text)
        for net in system.every("net"):
            speed = net.get("speed")
            if speed and c_number(speed) != node.nic_mbps:
                text = f"speed {speed}: the node type has {node.nic_mbps} Mb/s; leave speed out"
                yield Fault(WARNING, net.line, text)
        for gpu in system.every("gpu"):
            counts = [c_number(link.get("count")) for link in gpu.every("nvlink")]
            if counts and Counter(counts) != Counter(node.nvlinks):
                links = " + ".join(map(str, node.nvlinks))
                text = f"NVLinks of a GPU: the node type has {links} to its NVSwitches"
                yield Fault(WARNING, gpu.line, text)

    return rule


def _counted(system: Element, what: str, found: int, needed: int) -> Iterator[Fault]:
    if found != needed:
        text = f"{found} {what}; the node type has {needed}, and NCCL places missing ones by sysfs"
        yield Fault(WARNING, system.line, text)


def of_machine(machine: Machine, root: Path) -> Rule:
    """Rules for the machine below `root`: what the file lacks of it, and what it does not have."""
    have = {slot.device.busid: slot for slot in machine.slots}

    def rule(system: Element) -> Iterator[Fault]:
        given = {pci.get("busid"): pci for pci in system.every("pci")}
        for what, slots in (("GPU", machine.gpus), ("NIC", machine.nics)):
            for slot in slots:
                if slot.device.busid not in given:
                    name = " ".join(filter(None, (slot.device.busid, slot.device.name)))
                    text = f"{what} {name} of this machine is missing: NCCL puts it far from others"
                    yield Fault(ERROR if what == "GPU" else WARNING, system.line, text)
        for busid, pci in given.items():
            if (is_gpu(pci) or is_nic(pci)) and busid not in have:
                yield Fault(ERROR, pci.line, f"this machine has no device {busid}")
        yield from _affinities(system, machine)
        yield from _adapters(system, root)
        forced = [gpu for gpu in system.every("gpu") if gpu.get("gdr") == "1"]
        if forced and not (root / PEER_MEMORY).exists():
            text = 'gdr="1", and nvidia_peermem is not loaded: right only with dma-buf'
            yield Fault(NOTE, forced[0].line, text)

    return rule


def _affinities(system: Element, machine: Machine) -> Iterator[Fault]:
    have = 0
    for text in machine.affinities.values():
        have |= mask(text)
    for cpu in system.every("cpu"):
        affinity = cpu.get("affinity")
        if have and WORDS.fullmatch(affinity) and mask(affinity) & ~have:
            text = f"affinity {affinity} has CPUs that this machine does not have: leave it out"
            yield Fault(WARNING, cpu.line, text)


def _adapters(system: Element, root: Path) -> Iterator[Fault]:
    for net in system.every("net"):
        name, speed = net.get("name"), c_number(net.get("speed"))
        port = root / INFINIBAND_FOLDER / name.replace("/", "") / "ports" / "1"
        if name and not port.exists():
            yield Fault(ERROR, net.line, f"{name} is not in /sys/class/infiniband: see ibv_devices")
            continue
        rate = c_number(read_text(port / "rate"))
        if speed and rate and rate * 1000 != speed:
            text = f"speed {speed} Mb/s of {name}, whose port has {rate} Gb/s: leave speed out"
            yield Fault(WARNING, net.line, text)
