"""Accelerators and nodes. Each is a YAML file with the source and date of its numbers, which ships
with Penstock or is the user's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.core import InvalidValueError, PenstockError, did_you_mean, shortened
from penstock_ops.plan.hardware.files import Kind, read_hardware

ROOT = Path(__file__).parent
GIB = 2**30
OWN_SHARE = 0.01
"""Share of an accelerator's memory that the driver and a context use before an engine starts."""
HERE = "here"
SXM = "-sxm-"
"""Part of the names of accelerators on boards of eight, which a name without a form means."""
FILE = re.compile(r"(?P<word>.*\.ya?ml)(:(?P<number>[^:@/]*))?(@(?P<price>[^/]*))?", re.DOTALL)
"""A target that a file of the user describes: `FILE.yaml[:N][@PRICE]`."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device with the numbers of its data sheet. A domain is a group of devices with fast
    links.
    """

    name: str
    title: str
    memory: int
    bandwidth: float
    """Bytes per second that the device reads from its own memory."""
    flops: Mapping[str, float]
    """Operations per second on dense matrices, by number type. A missing type has no hardware
    support.
    """
    link: float
    """Bytes per second to another device in the same domain, in one direction."""
    linked: int
    """Number of devices in a domain."""
    per_node: int
    resource: str
    """Name of the Kubernetes resource that a pod requests for one device; empty for CPUs."""
    network: float
    """Bytes per second to a device in another domain, in one direction."""
    verified: bool
    source: str
    is_cpu: bool = False
    pcie: float = 0.0
    """Bytes per second between the device's memory and the host's, in one direction; 0 if
    unknown.
    """

    @property
    def usable(self) -> int:
        return self.memory if self.is_cpu else round(self.memory * (1 - OWN_SHARE))


@dataclass(frozen=True, slots=True)
class Node:
    """A type of server or virtual machine with several accelerators."""

    name: str
    title: str
    device: Accelerator
    count: int
    fabric_resources: Mapping[str, int]
    """Network resources, such as RDMA adapters, that a pod requests if it uses the whole node:
    number by name.
    """
    verified: bool
    source: str
    network: float | None = None
    """Bytes per second from each device to other nodes; None for the accelerator's own value."""

    def devices(self) -> Accelerator:
        """The node's accelerator. Its domain is at most the node, unless links of this accelerator
        connect several nodes.
        """
        device = self.device
        inside = device.linked <= device.per_node
        return replace(
            device,
            linked=min(device.linked, self.count) if inside else device.linked,
            per_node=self.count,
            network=self.network or device.network,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """Hardware to plan for: a number of accelerators, alone or in nodes."""

    accelerator: Accelerator
    count: int
    node: Node | None = None
    on: str = HERE
    """The text of `--on`, with the whole name and without the price."""
    price: float | None = None
    """Price per hour of one device, or of one node; in any currency. None if unknown."""
    word: str = ""
    """The accelerator or node as it was typed."""

    @property
    def name(self) -> str:
        """Name of the node, or of the accelerator."""
        return self.node.name if self.node else self.accelerator.name

    @property
    def per_node(self) -> int:
        return self.node.count if self.node else self.accelerator.per_node

    def taken(self, devices: int) -> int:
        """Number of devices that a deployment of `devices` devices occupies. If it needs more than
        one node, it occupies whole nodes.
        """
        if self.node is None or devices <= self.per_node:
            return devices
        return -(-devices // self.per_node) * self.per_node

    def cost(self, devices: int) -> float | None:
        """Price per hour of `devices` devices; None if unknown. A part of a node costs as much as
        the node.
        """
        if self.price is None:
            return None
        return self.price * (-(-devices // self.per_node) if self.node else devices)

    def within(self, budget: float) -> Target:
        """The target with only as many devices as `budget` pays for per hour; unchanged if prices
        are unknown.
        """
        if self.price is None or math.isinf(budget):
            return self
        # Round first: in floating point, 0.3 / 0.1 is less than 3.
        units = math.floor(round(budget / self.price, 9))
        each = self.per_node if self.node else 1
        return replace(self, count=min(self.count, units * each))


def accelerator(name: str) -> Accelerator:
    """The accelerator with this name. InvalidValueError lists the known names."""
    return _accelerator(_row("accelerators", name), name)


def node(name: str) -> Node:
    row = _row("nodes", name)
    return _node(row, name, accelerator(str(row["accelerator"])))


def of_file(path: Path) -> Accelerator | Node:
    """The accelerator or node that a file of the user describes. A node names a known accelerator,
    or a file with one beside it. PenstockError names file, line and member.
    """
    kind, row = read_hardware(path)
    name = str(row.get("name", path.stem))
    if kind == "accelerators":
        return _accelerator(row, name)
    word = str(row["accelerator"])
    if FILE.fullmatch(word):
        file = path.parent / word
        kind, own = read_hardware(file)
        if kind == "nodes":
            raise PenstockError(f"{path}: accelerator is {word}, which is a node")
        return _node(row, name, _accelerator(own, str(own.get("name", file.stem))))
    try:
        return _node(row, name, accelerator(full_name(word)))
    except InvalidValueError as error:
        known = f"one of {', '.join(names('accelerators'))}, or a file FILE.yaml"
        hint = did_you_mean(word, names("accelerators"))
        raise PenstockError(
            f"{path}: accelerator is {shortened(ascii(word))}, expected {known}{hint}"
        ) from error


def _accelerator(row: Mapping[str, Any], name: str) -> Accelerator:
    title = str(row.get("title", name))
    usual = "amd.com/gpu" if title.startswith("AMD") else "nvidia.com/gpu"
    return Accelerator(
        name=name,
        title=title,
        memory=int(row["memory_mib"]) * 2**20,
        bandwidth=float(row["memory_gb_per_s"]) * 1e9,
        flops={kind: float(rate) * 1e12 for kind, rate in row["tflops"].items()},
        link=float(row["link_gb_per_s"]) * 1e9,
        linked=int(row["linked"]),
        per_node=int(row["per_node"]),
        resource=str(row.get("resource", usual)),
        network=float(row.get("network_gb_per_s", row["pcie_gb_per_s"])) * 1e9,
        verified=bool(row.get("verified", False)),
        source=_source(row, name),
        pcie=float(row["pcie_gb_per_s"]) * 1e9,
    )


def _node(row: Mapping[str, Any], name: str, device: Accelerator) -> Node:
    return Node(
        name=name,
        title=str(row.get("title", name)),
        device=device,
        count=int(row["accelerators"]),
        fabric_resources=dict(row.get("fabric_resources", {})),
        verified=bool(row.get("verified", False)),
        source=_source(row, name),
        network=float(row["network_gb_per_s"]) * 1e9 if "network_gb_per_s" in row else None,
    )


def _source(row: Mapping[str, Any], name: str) -> str:
    source = str(row.get("source", f"the user's file of {name}"))
    return f"{source} ({row['date']})" if "date" in row else source


def names(kind: Kind) -> list[str]:
    """Names of the known hardware of a `kind`, which is the name of its directory, too."""
    return sorted(path.stem for path in (ROOT / kind).glob("*.yaml"))


def full_name(word: str) -> str:
    """The accelerator or node with this name; case is ignored. A prefix before a hyphen suffices if
    it is unique, or if only one match is an SXM form (`h100` is `h100-sxm-80gb`). Any other prefix
    raises InvalidValueError with the matching names, because an L40 is not an L40S.
    """
    known = [*names("accelerators"), *names("nodes")]
    lowered = word.lower()
    if lowered in known:
        return lowered
    forms = [name for name in known if name.startswith(f"{lowered}-")]
    usual = [name for name in forms if SXM in name] if len(forms) > 1 else forms
    if len(usual) == 1:
        return usual[0]
    begun = [name for name in known if word and name.startswith(lowered)]
    if begun:
        raise InvalidValueError("--on", word, f"a name, of those that begin so {', '.join(begun)}")
    heads = {"-".join(parts[:i]) for parts in (n.split("-") for n in known) for i in (1, 2)}
    hint = did_you_mean(word, [*known, *sorted(heads)])
    expected = f"one of {', '.join([HERE, *known])}, or a file FILE.yaml{hint}"
    raise InvalidValueError("--on", shortened(word, 80), expected)


def parse_targets(text: str) -> list[Target]:
    """The targets in the comma-separated list of `--on`. With several, each needs a price, because
    the cheapest is chosen.
    """
    found = [parse_target(each) for each in text.split(",")]
    if len(found) > 1 and any(target.price is None for target in found):
        raise InvalidValueError("--on", text, "TYPE:N@PRICE, a price for each of several targets")
    return found


def parse_target(text: str) -> Target:
    """The target in a text `ACCELERATOR[:COUNT][@PRICE]` or `NODE[:NODES][@PRICE]`, where a file of
    the user may replace the name.
    """
    if file := FILE.fullmatch(text):
        word, number, price = file["word"], file["number"] or "", file["price"]
        count, paid = _count(text, number), _price(text, price)
        if "\0" in word:
            raise InvalidValueError("--on", shortened(ascii(word)), "the name of a file")
        found: Accelerator | Node = of_file(Path(word))
        on = f"{word}:{number}" if number else word
    else:
        on, at, rest = text.partition("@")
        word, _, number = on.partition(":")
        count, paid = _count(text, number), _price(text, rest if at else None)
        name = full_name(word)
        on = f"{name}{on.removeprefix(word)}"
        found = node(name) if name in names("nodes") else accelerator(name)
    if isinstance(found, Node):
        return Target(found.devices(), count * found.count, found, on, paid, word)
    return Target(found, count, None, on, paid, word)


def _count(text: str, number: str) -> int:
    if number and not (number.isdecimal() and len(number) <= 6 and int(number)):
        raise InvalidValueError("--on", shortened(text, 80), "TYPE or TYPE:N, N of 1 to 999999")
    return int(number) if number else 1


def _price(text: str, price: str | None) -> float | None:
    if price is None:
        return None
    try:
        found = float(price)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise InvalidValueError("--on", text, "TYPE:N@PRICE, a price of an hour over 0")
    return found


def _row(kind: Kind, name: str) -> Mapping[str, Any]:
    if name not in names(kind):
        raise InvalidValueError("--on", name, f"one of {', '.join(names(kind))}")
    return read_hardware(ROOT / kind / f"{name}.yaml")[1]
