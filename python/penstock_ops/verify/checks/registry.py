"""All checks of one node, in the order of reports."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core import InvalidValueError, did_you_mean
from penstock_ops.verify.checks import (
    acs,
    all_reduce_rate,
    clock,
    copy_rate,
    cpu,
    devices,
    driver,
    gpu_health,
    gpu_topology,
    gpudirect,
    hca,
    iommu,
    limits,
    memory,
    numa,
    nvlink,
    pcie,
    roce,
    storage,
    throttling,
    xid,
)
from penstock_ops.verify.checks.check import NodeCheck

CHECKS: tuple[NodeCheck, ...] = (
    devices.CHECK,
    driver.CHECK,
    gpu_health.ECC,
    gpu_health.REMAPPING,
    gpu_health.RECOVERY,
    throttling.CHECK,
    xid.CHECK,
    memory.SHARED,
    memory.PAGES,
    memory.RATE_CHECK,
    nvlink.LINK_CHECK,
    nvlink.FABRIC_CHECK,
    gpu_topology.PATHS_CHECK,
    gpu_topology.PEERS_CHECK,
    pcie.CHECK,
    copy_rate.CHECK,
    all_reduce_rate.CHECK,
    acs.CHECK,
    iommu.CHECK,
    hca.CHECK,
    hca.ERRORS,
    roce.CHECK,
    gpudirect.CHECK,
    storage.CHECK,
    storage.STORES,
    numa.CHECK,
    limits.CHECK,
    cpu.QUOTA,
    cpu.FREQUENCY,
    cpu.AMX,
    clock.CLOCK,
    clock.NAMES,
)


def named(names: Sequence[str]) -> tuple[NodeCheck, ...]:
    """The checks with these names. InvalidValueError if one is unknown."""
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            expected = f"names of --list-checks{did_you_mean(name, known)}"
            raise InvalidValueError("--checks", name, expected)
    return tuple(check for check in CHECKS if check.name in names)
