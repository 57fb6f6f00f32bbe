"""Compares routing profiles of the gateway offline: replays traces and synthetic workloads on
simulated replicas, in simulated time (docs/routing.md).
"""

from penstock_lab.bench.routing.replay import (
    POLICIES,
    Fleet,
    Policy,
    Summary,
    policy,
    replay,
)
from penstock_lab.bench.routing.workloads import WORKLOADS, Workload, from_trace, made_up

__all__ = [
    "POLICIES",
    "WORKLOADS",
    "Fleet",
    "Policy",
    "Summary",
    "Workload",
    "from_trace",
    "made_up",
    "policy",
    "replay",
]
