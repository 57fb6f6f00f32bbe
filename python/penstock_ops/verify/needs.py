"""Needs: what a plan requires of its nodes, as bounds by name. Without a plan there is only what
the hardware should give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_ops.verify.finding import Bound


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of one replica's nodes. Zero and empty stand for no requirement."""

    plan: str = ""
    """Name of the plan's file; empty without a plan."""
    model: str = ""
    nodes: int = 1
    devices: int = 0
    """Accelerators that the plan uses on a node."""
    accelerator: str = ""
    """Name in penstock_ops/plan/hardware/accelerators."""
    ranks: int = 0
    """Ranks on a node."""
    threads: int = 0
    """Threads on a node, if the plan is for CPUs."""
    shared_memory: int = 0
    """Bytes of /dev/shm."""
    fabric_resources: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    """By name: memory_gb_per_s, all_reduce_us, storage_gb_per_s, ..., as in the plan's thresholds
    and in the table of expected values.
    """
