"""The one table of versions of NVIDIA's operators, and what of it fits together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core import InvalidValueError

NUMBERS = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,6}){1,3})(?:[-+].*)?")
OPEN_MODULE = (515,)
"""First driver whose open kernel module exports GPU memory as dma-buf (NVIDIA's GPU operator,
GPUDirect RDMA).
"""

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Image:
    image: str
    repository: str
    version: str


@dataclass(frozen=True, slots=True)
class NetworkOperator:
    """A release of the network operator, from "Platform Support" and "Container Images" of its
    documentation (docs.nvidia.com/networking/display/kubernetesVERSION).
    """

    release: Version
    """Year and month, which name a release."""
    kubernetes: tuple[Version, Version]
    """Oldest and newest version of Kubernetes."""
    gpu_operator: Version
    """Oldest GPU operator."""
    ended: bool
    """Whether NVIDIA had ended its support by 2026-11."""
    driver: Image | None = None
    plugin: Image | None = None
    """Images of a NicClusterPolicy; None if they are not known."""


NETWORK_OPERATORS = (
    NetworkOperator((24, 10), ((1, 27), (1, 30)), (24, 3), ended=True),
    NetworkOperator(
        (25, 4),
        ((1, 29), (1, 32)),
        (25, 3),
        ended=True,
        driver=Image("doca-driver", "nvcr.io/nvidia/mellanox", "25.04-0.6.1.0-2"),
        plugin=Image("k8s-rdma-shared-dev-plugin", "ghcr.io/mellanox", "v1.5.3"),
    ),
    NetworkOperator((26, 1), ((1, 31), (1, 35)), (25, 3), ended=True),
)
"""Newer ones (26.4, 26.7, 26.10) are not here: their ranges are not known to us."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What is to be installed together."""

    kubernetes: str
    network_operator: str
    gpu_operator: str
    driver: str
    """NVIDIA's GPU driver in the nodes."""
    fabric_manager: str
    """In the VM that has the NVSwitches, or in the nodes."""


PUBLISHED = Versions("1.32", "25.4.0", "25.3.0", "570.148.08", "570.148.08")
"""Those that source 002 ran, with the Fabric Manager that belongs to its driver."""


@dataclass(frozen=True, slots=True)
class Misfit:
    severity: str
    """`error` or `warning`."""
    text: str


def version(flag: str, text: str) -> Version:
    found = NUMBERS.fullmatch(text)
    if not found:
        raise InvalidValueError(flag, text, "a version such as 25.4.0")
    return tuple(map(int, found[1].split(".")))


def network_operator(text: str) -> NetworkOperator | None:
    """The release of a version; None if the table does not have it."""
    release = version("--network-operator", text)[:2]
    return next((row for row in NETWORK_OPERATORS if row.release == release), None)


def misfits(versions: Versions) -> Iterator[Misfit]:
    """What does not fit together, errors first. InvalidValueError for a text that is no version."""
    yield from driver_misfits(versions.driver, versions.fabric_manager)
    row = network_operator(versions.network_operator)
    if row is None:
        known = ", ".join(map(_text, (each.release for each in NETWORK_OPERATORS)))
        text = f"network operator {versions.network_operator} is not in the table ({known})"
        yield Misfit("warning", f"{text}: see its page Platform Support")
        return
    oldest, newest = row.kubernetes
    if not oldest <= version("--kubernetes", versions.kubernetes)[:2] <= newest:
        text = f"network operator {versions.network_operator} is for Kubernetes {_text(oldest)} to"
        yield Misfit("error", f"{text} {_text(newest)}, not {versions.kubernetes}")
    if version("--gpu-operator", versions.gpu_operator)[:2] < row.gpu_operator:
        text = f"network operator {versions.network_operator} needs GPU operator"
        yield Misfit("error", f"{text} {_text(row.gpu_operator)}, not {versions.gpu_operator}")
    if row.ended:
        text = f"network operator {versions.network_operator} gets no more fixes: NVIDIA has ended"
        yield Misfit("warning", f"{text} its support")


def driver_misfits(driver: str, fabric_manager: str) -> Iterator[Misfit]:
    """Fabric Manager refuses a driver of another version (NVIDIA's Fabric Manager user guide)."""
    numbers = version("--driver", driver)
    if version("--fabric-manager", fabric_manager) != numbers:
        text = f"driver {driver} and Fabric Manager {fabric_manager} differ"
        yield Misfit("error", f"{text}: both are the same to the last digit")
    if numbers < OPEN_MODULE:
        text = f"driver {driver}: dma-buf needs the open kernel module of"
        yield Misfit("error", f"{text} {_text(OPEN_MODULE)} or later")


def _text(numbers: Version) -> str:
    return ".".join(map(str, numbers))
