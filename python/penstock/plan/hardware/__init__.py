"""Accelerators and nodes: one YAML file each, every one with its source and date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.core import InvalidValueError, PenstockError

ROOT = Path(__file__).parent
GIB = 2**30
OWN_SHARE = 0.01
"""Share of an accelerator's memory: what the driver and a context take before an engine starts."""
HERE = "here"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device, with the rates of its data sheet."""

    name: str
    title: str
    memory: int
    bandwidth: float
    """Bytes a second from its own memory."""
    flops: Mapping[str, float]
    """Dense operations a second by number type; a type that is missing has no unit for it."""
    link: float
    """Bytes a second to another device of its domain, one way."""
    linked: int
    """Devices of a domain."""
    per_node: int
    resource: str
    """What a pod requests to get one; empty for processors."""
    network: float
    """Bytes a second to a device outside its domain, one way."""
    verified: bool
    source: str
    is_cpu: bool = False

    @property
    def usable(self) -> int:
        return self.memory if self.is_cpu else round(self.memory * (1 - OWN_SHARE))


@dataclass(frozen=True, slots=True)
class Node:
    """A server or a type of virtual machine."""

    name: str
    title: str
    accelerator: str
    count: int
    vcpus: int
    memory: int
    fabric: str
    fabric_resources: Mapping[str, int]
    """What a pod of the whole node requests of the fabric."""
    verified: bool
    source: str


@dataclass(frozen=True, slots=True)
class Target:
    """What to plan for."""

    accelerator: Accelerator
    count: int
    node: Node | None = None

    @property
    def per_node(self) -> int:
        return self.node.count if self.node else self.accelerator.per_node


def accelerator(name: str) -> Accelerator:
    """A described accelerator; InvalidValueError lists those there are."""
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
    )


def node(name: str) -> Node:
    row = _row("nodes", name)
    return Node(
        name=name,
        title=str(row["title"]),
        accelerator=str(row["accelerator"]),
        count=int(row["accelerators"]),
        vcpus=int(row["vcpus"]),
        memory=int(row["memory_gib"]) * GIB,
        fabric=str(row["fabric"]),
        fabric_resources=dict(row.get("fabric_resources", {})),
        verified=bool(row["verified"]),
        source=f"{row['source']} ({row['date']})",
    )


def names(kind: str) -> list[str]:
    """Files of a directory, `accelerators` or `nodes`."""
    return sorted(path.stem for path in (ROOT / kind).glob("*.yaml"))


def parse_target(text: str) -> Target:
    """`ACCELERATOR[:COUNT]` or `NODE[:NODES]`."""
    name, _, number = text.partition(":")
    if number and not (number.isdecimal() and int(number)):
        raise InvalidValueError("--on", text, "TYPE or TYPE:N, N at least 1")
    count = int(number) if number else 1
    if name in names("nodes"):
        found = node(name)
        return Target(accelerator(found.accelerator), count * found.count, found)
    return Target(accelerator(name), count)


def _row(kind: str, name: str) -> Mapping[str, Any]:
    path = ROOT / kind / f"{name}.yaml"
    if name not in names(kind):
        known = ", ".join([HERE, *names("accelerators"), *names("nodes")])
        raise InvalidValueError("--on", name, f"one of {known}")
    row = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(row, dict):
        raise PenstockError(f"{path.name}: not a mapping")
    return row
