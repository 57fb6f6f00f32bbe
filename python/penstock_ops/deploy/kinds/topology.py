"""ConfigMap with NCCL's topology file, for virtual machines in which NCCL cannot detect the
hardware topology.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.settings import TOPOLOGY


def topology_name(name: str) -> str:
    return f"{name}-topology"


def topology(facts: Facts) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": topology_name(facts.name), "labels": facts.labels("network")},
        "data": {TOPOLOGY: facts.topology},
    }
