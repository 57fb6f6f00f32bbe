"""Known accelerators and nodes. Each is a YAML file with the source and date of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.core import InvalidValueError, PenstockError, did_you_mean, shortened

ROOT = Path(__file__).parent
GIB = 2**30
OWN_SHARE = 0.01
"""Share of an accelerator's memory that the driver and a context take before an engine starts."""
HERE = "here"
SXM = "-sxm-"
"""Part of the names of accelerators on boards of eight, which a name without a form means."""


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
    accelerator: str
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
        device = accelerator(self.accelerator)
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
    row = _row("accelerators", name)
    network = row.get("network_gb_per_s")
    return Accelerator(
        name=name,
        title=str(row["title"]),
        memory=int(row["memory_mib"]) * 2**20,
        bandwidth=float(row["memory_gb_per_s"]) * 1e9,
        flops={kind: float(rate) * 1e12 for kind, rate in row["tflops"].items()},
        link=float(row["link_gb_per_s"]) * 1e9,
        linked=int(row["linked"]),
        per_node=int(row["per_node"]),
        resource="amd.com/gpu" if str(row["title"]).startswith("AMD") else "nvidia.com/gpu",
        network=float(network or row["pcie_gb_per_s"]) * 1e9,
        verified=bool(row["verified"]),
        source=f"{row['source']} ({row['date']})",
        pcie=float(row["pcie_gb_per_s"]) * 1e9,
    )


def node(name: str) -> Node:
    row = _row("nodes", name)
    return Node(
        name=name,
        title=str(row["title"]),
        accelerator=str(row["accelerator"]),
        count=int(row["accelerators"]),
        fabric_resources=dict(row.get("fabric_resources", {})),
        verified=bool(row["verified"]),
        source=f"{row['source']} ({row['date']})",
        network=float(row["network_gb_per_s"]) * 1e9 if "network_gb_per_s" in row else None,
    )


def names(kind: str) -> list[str]:
    """Names of the known hardware of a `kind`, which is the directory `accelerators` or `nodes`."""
    return sorted(path.stem for path in (ROOT / kind).glob("*.yaml"))


def full_name(word: str) -> str:
    """The accelerator or node with this name in any case, or the only one whose name goes on from
    it with a hyphen, of several the only SXM form (`h100` is `h100-sxm-80gb`). An L40 is no L40S:
    other beginnings are an InvalidValueError with the names that begin so.
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
    expected = f"one of {', '.join([HERE, *known])}{hint}"
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
    """The target in a text `ACCELERATOR[:COUNT][@PRICE]` or `NODE[:NODES][@PRICE]`."""
    on, _, price = text.partition("@")
    word, _, number = on.partition(":")
    if number and not (number.isdecimal() and int(number)):
        raise InvalidValueError("--on", text, "TYPE or TYPE:N, N at least 1")
    name = full_name(word)
    on = f"{name}{on.removeprefix(word)}"
    count, paid = int(number) if number else 1, _price(text, price)
    if name in names("nodes"):
        found = node(name)
        return Target(found.devices(), count * found.count, found, on, paid, word)
    return Target(accelerator(name), count, None, on, paid, word)


def _price(text: str, price: str) -> float | None:
    if "@" not in text:
        return None
    try:
        found = float(price)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise InvalidValueError("--on", text, "TYPE:N@PRICE, a price of an hour over 0")
    return found


def _row(kind: str, name: str) -> Mapping[str, Any]:
    path = ROOT / kind / f"{name}.yaml"
    if name not in names(kind):
        raise InvalidValueError("--on", name, f"one of {', '.join(names(kind))}")
    row = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(row, dict):
        raise PenstockError(f"{path.name}: not a mapping")
    return row
