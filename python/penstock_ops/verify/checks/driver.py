"""Versions that belong together: driver, Fabric Manager, peer memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock_ops.verify.checks import nvidia
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.parsing import fields, numbered
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Absence, Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.sources import Command, Files

MANAGER = Command("fabric-manager", ("nv-fabricmanager", "--version"))
KERNEL = Files("nvidia-version", "/proc/driver/nvidia/version")
MANAGER_LINE = re.compile(r"\s*Fabric Manager version is : (\d{3}(?:\.\d{1,3}){1,2})")
KERNEL_LINE = re.compile(r"NVRM version: NVIDIA UNIX .*?  (\d{3}(?:\.\d{1,3}){1,2})  .+")


def manager_version(text: str) -> str:
    rows = list(numbered(text))
    if len(rows) != 1:
        raise ParseError(len(rows), text.strip(), "one line with the version of Fabric Manager")
    number, line = rows[0]
    return fields(line, number, MANAGER_LINE, "Fabric Manager version is : N.N.N")[1]


def kernel_version(text: str) -> str:
    """Version of the loaded kernel module, from its first line."""
    number, line = next(numbered(text), (1, ""))
    return fields(line, number, KERNEL_LINE, "NVRM version: NVIDIA UNIX ...")[1]


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    inventory, findings = nvidia.gpus(check, node, needs)
    if findings:
        yield from findings
        return
    driver = inventory.driver
    yield _loaded(check, node, driver)
    if any(gpu.accelerator for gpu in inventory.gpus) and len(inventory.gpus) > 1:
        yield _manager(check, node, driver)


def _loaded(check: NodeCheck, node: Snapshot, driver: str) -> Finding:
    """The library of nvidia-smi and the kernel module."""
    kernel = node[KERNEL.name]
    if not kernel.is_present:
        return check.absent(node, kernel, is_needed=False)
    loaded = kernel_version(next(iter(kernel.files.values())))
    if loaded == driver:
        return check.finding(node, Status.PASS, f"driver {driver}")
    return check.finding(
        node,
        Status.FAIL,
        f"driver library {driver}, kernel module {loaded}",
        cause="the driver was updated without a reboot, or a container brings its own",
        remedy="reboot, or reload the kernel module",
    )


def _manager(check: NodeCheck, node: Snapshot, driver: str) -> Finding:
    manager = node[MANAGER.name]
    if not manager.is_present:
        if manager.absence is Absence.MISSING:
            summary = "no nv-fabricmanager here: it runs on the host, in a service VM or driver pod"
            return check.finding(node, Status.SKIPPED, summary)
        return check.absent(node, manager, is_needed=True)
    version = manager_version(manager.text)
    if version == driver:
        return check.finding(node, Status.PASS, f"Fabric Manager {version}, as the driver")
    return check.finding(
        node,
        Status.FAIL,
        f"driver {driver}, Fabric Manager {version}",
        cause="Fabric Manager serves only the driver of exactly its own version",
        remedy=f"install nvidia-fabricmanager {driver}",
    )


CHECK = NodeCheck(
    "driver",
    "driver, kernel module and Fabric Manager of one version",
    Layer.DEVICE,
    (*nvidia.SOURCES, MANAGER, KERNEL),
    judge,
)
