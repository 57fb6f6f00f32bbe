"""Whether clocks of GPUs are lowered: for heat, power, or a brake signal."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.verify.checks import nvidia
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.nvidia import Element, Gpu
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Finding, Layer, Status
from penstock_ops.verify.needs import Needs

PREFIXES = ("clocks_event_reason", "clocks_throttle_reason")
"""Names before and after driver 535."""
SLOWED = {
    "hw_slowdown": ("hardware slowdown: heat or power", "check cooling and power supplies"),
    "hw_thermal_slowdown": ("too hot", "check fans, airflow and coolant"),
    "hw_power_brake_slowdown": ("the power brake of the server", "check its power supplies"),
    "sw_thermal_slowdown": ("above the driver's temperature target", "check the cooling"),
}
"""Reasons that lower clocks below what the load allows, with cause and remedy. Idle, a power cap
and application clocks are no fault.
"""


def judge(check: NodeCheck, node: Snapshot, needs: Needs) -> Iterator[Finding]:
    for gpu in nvidia.each(check, node, needs):
        if isinstance(gpu, Finding):
            yield gpu
            continue
        active = _active(gpu)
        if active is None:
            yield nvidia.unreported(check, node, gpu, "reasons for its clocks")
        elif not active:
            yield check.finding(node, Status.PASS, "clocks not lowered", device=gpu.bus_id)
        for reason in active or ():
            cause, remedy = SLOWED[reason]
            yield check.finding(
                node,
                Status.WARN,
                "clocks are lowered",
                device=gpu.bus_id,
                cause=cause,
                remedy=remedy,
                evidence=reason,
            )


def _active(gpu: Gpu) -> list[str] | None:
    """Reasons of SLOWED that are active; None if the device reports none."""
    prefix, reasons = _reasons(gpu)
    flags = {name: reasons.flag(f"{prefix}_{name}", "Active", "Not Active") for name in SLOWED}
    return None if None in flags.values() else [name for name, active in flags.items() if active]


def _reasons(gpu: Gpu) -> tuple[str, Element]:
    for prefix in PREFIXES:
        if found := gpu.element.find(f"{prefix}s"):
            return prefix, found
    raise ParseError(gpu.element.line, gpu.bus_id, f"{PREFIXES[0]}s in it")


CHECK = NodeCheck(
    "throttling",
    "clocks of GPUs lowered by heat or power",
    Layer.DEVICE,
    nvidia.SOURCES,
    judge,
)
