"""What a topology says that its machine, or NCCL, would not: rules over the tree of a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.core import did_you_mean, shortened
from penstock_ops.deploy.topology.grammar import (
    ATTRIBUTES,
    BRIDGE,
    GPU,
    NIC,
    NVSWITCH,
    OTHER_SPEED,
    Element,
    c_number,
    knows_speed,
    shown,
)

BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
WORDS = re.compile(r"[0-9a-f]{1,8}(,[0-9a-f]{1,8})*", re.IGNORECASE)
NUMBER = re.compile(r"-?[0-9]+|0x[0-9a-f]+", re.IGNORECASE)
ERROR, WARNING, NOTE = "error", "warning", "note"
LINKS = {80: 12, 90: 18, 100: 18}
"""NVLinks of a GPU on an HGX board, by compute capability (source 002 for 9.0; NVIDIA's data sheets
of A100 and B200).
"""
CAPABILITIES = {"0x20b0": 80, "0x20b2": 80, "0x2330": 90, "0x2335": 90, "0x2901": 100}
"""Compute capability by PCI device: A100 SXM of 40 and 80 GB, H100 SXM, H200 SXM, B200."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding: what is wrong in a line, and what makes it right. A lower `rank` is printed
    first within a severity.
    """

    severity: str
    line: int
    text: str
    rank: int = 5


Rule = Callable[[Element], Iterator[Fault]]


def attributes(system: Element) -> Iterator[Fault]:
    """NCCL keeps attributes that it does not know, and reads none of them."""
    for element in (system, *system.descendants()):
        known = ATTRIBUTES.get(element.name, ())
        for name, value in element.attributes.items():
            if not value.isprintable():
                text = f"{shown(name)} has a character that is not printable: {_quoted(value)}"
                yield Fault(WARNING, element.line, text)
            if name not in known:
                hint = did_you_mean(name, known)
                text = f"<{element.name}> has no attribute {shown(name)!r}{hint}"
                yield Fault(WARNING, element.line, text)


def bus_ids(system: Element) -> Iterator[Fault]:
    """NCCL looks devices up by the text `dddd:bb:dd.f` in lower case (getPciPath, xmlFindTagKv)."""
    seen: dict[str, int] = {}
    for pci in system.every("pci"):
        busid = pci.get("busid")
        if not BUS_ID.fullmatch(busid):
            has = f"busid {_quoted(busid)} is no address" if busid else "<pci> has no busid"
            yield Fault(ERROR, pci.line, f"{has}: write {_meant(busid)}", 0)
        elif busid in seen:
            text = f"busid {busid} is that of line {seen[busid]}, too: each device has its own"
            yield Fault(ERROR, pci.line, text, 0)
        seen.setdefault(busid, pci.line)


def _meant(busid: str) -> str:
    digits = re.sub("[^0-9a-f]", "", busid.lower())
    if len(digits) == 9:
        return f"{digits[:4]}:{digits[4:6]}:{digits[6:8]}.{digits[8]}"
    if len(digits) == 5:
        return f"0000:{digits[:2]}:{digits[2:4]}.{digits[4]}"
    return "domain:bus:device.function in lower case, such as 0000:04:03.0"


def classes(system: Element) -> Iterator[Fault]:
    for pci in system.every("pci"):
        kind = pci.get("class")
        if not kind:
            yield Fault(ERROR, pci.line, f'{_named(pci)} has no class: a bridge is "{BRIDGE}"')
        elif _has(pci, "gpu") and not kind.startswith(GPU):
            text = f'{_named(pci)} has a <gpu>, and class {kind}: a GPU is "0x030200"'
            yield Fault(ERROR, pci.line, text)
        elif _has(pci, "nic") and not kind.startswith(NIC):
            text = f'{_named(pci)} has a <nic>, and class {kind}: InfiniBand is "0x020700"'
            yield Fault(WARNING, pci.line, text)


def pairs(system: Element) -> Iterator[Fault]:
    """A GPU and its NIC belong under one bridge: NCCL's distance is PIX or PXB then, and GPUDirect
    RDMA is used up to PXB.
    """
    every = [*system.every("pci")]
    gpus, nics = [p for p in every if is_gpu(p)], [p for p in every if is_nic(p)]
    if not gpus:
        yield Fault(ERROR, system.line, "there is no GPU: NCCL hangs each at an unknown CPU")
        return
    if not nics:
        text = "there is no NIC: NCCL takes each at its place in sysfs, far from its GPU in a VM"
        yield Fault(WARNING, system.line, text)
        return
    for port in (child for cpu in system.every("cpu") for child in cpu.children):
        below = [port, *port.every("pci")]
        kinds = {"GPU": [*filter(is_gpu, below)], "NIC": [*filter(is_nic, below)]}
        for what, other in (("GPU", "NIC"), ("NIC", "GPU")):
            for lone in kinds[what] if not kinds[other] else ():
                text = f"{what} {_named(lone)} has no {other} under its bridge"
                yield Fault(WARNING, lone.line, f"{text}: put both into one <pci>")


def processors(system: Element) -> Iterator[Fault]:
    """Rules of ncclTopoGetXmlFromCpu and the CPU part of topo.cc."""
    taken: dict[int, int] = {}
    numbers = Counter(cpu.get("numaid") for cpu in system.every("cpu"))
    for cpu in system.every("cpu"):
        numa, affinity = cpu.get("numaid"), cpu.get("affinity")
        if not NUMBER.fullmatch(numa):
            has = f"numaid {_quoted(numa)} is no number" if numa else "<cpu> has no numaid"
            yield Fault(ERROR, cpu.line, f"{has}: write that of the socket, such as 0", 1)
        elif numbers[numa] > 1 and not cpu.get("host_hash"):
            text = f"numaid {numa} is given {numbers[numa]} times: each <cpu> has its own"
            yield Fault(ERROR, cpu.line, text, 1)
        if not affinity:
            text = f"no affinity: NCCL reads /sys/devices/system/node/node{numa or '?'}/cpumap"
            yield Fault(NOTE, cpu.line, f"{text}; a VM without that node binds no CPU")
        elif not WORDS.fullmatch(affinity):
            text = f"affinity {_quoted(affinity)}: words of 8 hex digits with commas, as in cpumap"
            yield Fault(ERROR, cpu.line, text)
        else:
            yield from _overlap(cpu, affinity, taken)
        if ("familyid" in cpu.attributes) != ("modelid" in cpu.attributes):
            text = "familyid and modelid belong together: give both, or none and NCCL asks the CPU"
            yield Fault(ERROR, cpu.line, text)


def _overlap(cpu: Element, affinity: str, taken: dict[int, int]) -> Iterator[Fault]:
    """Compares with the masks of earlier processors, which are in `taken` by line."""
    own = mask(affinity)
    for line, other in taken.items():
        if own & other:
            text = f"affinity shares CPUs with line {line}: each socket has its own"
            yield Fault(WARNING, cpu.line, text)
    taken[cpu.line] = own


def mask(affinity: str) -> int:
    """The CPUs of an affinity, one bit each."""
    return int("".join(word.rjust(8, "0") for word in affinity.split(",")), 16)


def speeds(system: Element) -> Iterator[Fault]:
    for pci in system.every("pci"):
        speed, width = pci.get("link_speed"), pci.get("link_width")
        gen3 = OTHER_SPEED * 16 // 80
        if not speed and pci.get("class").startswith(BRIDGE):
            text = f"{_named(pci)} has no link_speed: NCCL counts {gen3} GB/s unless sysfs has it"
            yield Fault(WARNING, pci.line, f'{text}; write such as "32.0 GT/s PCIe"')
        elif speed and not knows_speed(speed):
            text = f"link_speed {_quoted(speed)} is read as Gen3 ({gen3} GB/s)"
            yield Fault(WARNING, pci.line, f'{text}: write "32.0 GT/s PCIe", as in sysfs')
        if width and not (NUMBER.fullmatch(width) and 0 <= (c_number(width) or 0) <= 32):
            yield Fault(ERROR, pci.line, f"link_width {_quoted(width)}: write a number, as 16")


def gpus(system: Element) -> Iterator[Fault]:
    numbers = Counter(gpu.get("dev") for gpu in system.every("gpu") if gpu.get("dev"))
    for pci in system.every("pci"):
        for gpu in (child for child in pci.children if child.name == "gpu"):
            dev, sm = gpu.get("dev"), gpu.get("sm")
            if numbers[dev] > 1:
                text = f"dev {dev} is given {numbers[dev]} times: each GPU has its NVML index"
                yield Fault(ERROR, gpu.line, text)
            for name in ("dev", "sm", "rank"):
                if (text := gpu.get(name)) and not NUMBER.fullmatch(text):
                    yield Fault(ERROR, gpu.line, f"{name} {_quoted(text)} is no number")
            known = CAPABILITIES.get(pci.get("device").lower())
            if known and sm and sm != str(known):
                text = f"sm {sm} of device {pci.get('device')}, which has {known}: leave sm out"
                yield Fault(ERROR, gpu.line, text)
            yield from _links(gpu)
            yield from _forced(gpu, "GPU")


def _links(gpu: Element) -> Iterator[Fault]:
    """One nvlink element switches NCCL's own search for links off (ncclTopoGetXmlFromGpu)."""
    links = [child for child in gpu.children if child.name == "nvlink"]
    total = 0
    for link in links:
        target, count, kind = link.get("target"), link.get("count"), link.get("tclass")
        if not BUS_ID.fullmatch(target):
            text = f"target {_quoted(target)} is no address: write {_meant(target)}"
            yield Fault(ERROR, link.line, text, 0)
        links_here = c_number(count) or 0
        if not (NUMBER.fullmatch(count) and links_here > 0):
            text = f"count {_quoted(count)}: write the number of links, or leave <nvlink> out"
            yield Fault(ERROR, link.line, text)
        if kind and not kind.startswith((NVSWITCH, GPU)):
            text = f'target {target} has class {kind}: an NVSwitch is "{NVSWITCH}"'
            yield Fault(ERROR, link.line, text)
        total += links_here
    needed = LINKS.get(c_number(gpu.get("sm")) or 0)
    if links and needed and total != needed:
        text = f"GPU {gpu.get('dev')} has {total} NVLinks, sm {gpu.get('sm')} has {needed}"
        yield Fault(WARNING, gpu.line, f"{text}: NCCL searches for no others; leave <nvlink> out")


def networks(system: Element) -> Iterator[Fault]:
    names = Counter(net.get("name") for net in system.every("net") if net.get("name"))
    for net in system.every("net"):
        name = net.get("name")
        if not name:
            text = "<net> has no name, by which NCCL finds it: write such as mlx5_0"
            yield Fault(WARNING, net.line, text)
        elif names[name] > 1:
            text = f"name {name} is given {names[name]} times: each adapter has its own"
            yield Fault(ERROR, net.line, text)
        speed = net.get("speed")
        if speed and not (NUMBER.fullmatch(speed) and (c_number(speed) or 0) > 0):
            text = f"speed {_quoted(speed)} is read as 10000: write Mb/s, or leave it out"
            yield Fault(WARNING, net.line, text)
        if net.get("guid"):
            text = "guid is of one host: leave it out, and NCCL reads that of each"
            yield Fault(WARNING, net.line, text)
        yield from _forced(net, "NIC")


def _forced(element: Element, what: str) -> Iterator[Fault]:
    if element.get("gdr") == "1":
        text = f'gdr="1" claims GPUDirect RDMA of a {what} even without nvidia_peermem or dma-buf'
        yield Fault(NOTE, element.line, f"{text}: leave it out, and NCCL detects it")


def is_gpu(pci: Element) -> bool:
    return _has(pci, "gpu") or pci.get("class").startswith(GPU)


def is_nic(pci: Element) -> bool:
    return _has(pci, "nic") or pci.get("class").startswith(NIC)


def _has(element: Element, name: str) -> bool:
    return any(child.name == name for child in element.children)


def _quoted(text: str) -> str:
    return repr(shortened(text))


def _named(pci: Element) -> str:
    return shortened(pci.get("busid")) or f"of line {pci.line}"


RULES: tuple[Rule, ...] = (
    *(attributes, bus_ids, classes, pairs, processors, speeds, gpus, networks),
)
