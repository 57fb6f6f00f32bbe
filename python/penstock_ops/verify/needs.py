"""Needs: what a plan requires of its nodes, as bounds by name. Without a plan there is only what
the hardware should give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.config import forms
from penstock.config.forms import (
    count,
    members,
    number,
    one_of,
    or_null,
    rows,
    table,
    text,
)
from penstock_ops.plan import hardware
from penstock_ops.verify.finding import Bound

MOST_RANKS = 1024
WEIGHTS = "weights"
"""Key of `Needs.directories`."""
REDUCED_BYTES = 64 << 10
"""Size of an all-reduce without a plan."""


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
    reduced_bytes: int = REDUCED_BYTES
    """Bytes of an all-reduce."""
    fabric_resources: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    """By name: memory_gb_per_s, all_reduce_us, storage_gb_per_s, ..., as in the plan's thresholds
    and in the table of expected values.
    """
    directories: Mapping[str, str] = field(default_factory=dict)
    """Directories on a node whose read rate is measured: path by use, which is WEIGHTS or the kind
    of a tier.
    """
    config: str = ""
    """Configuration file of `penstock serve` with the tiers, whose URLs may have passwords."""
    stores: tuple[str, ...] = ()
    """Names of its remote KV tiers, without passwords."""
    hosts: tuple[str, ...] = ()
    """Names of other nodes and stores that a node must resolve."""

    @property
    def is_planned(self) -> bool:
        return bool(self.plan)

    def bound(self, name: str, unit: str) -> Bound:
        """The bound by this name, or one without limits."""
        return self.bounds.get(name) or Bound(None, None, unit)


RANKS = count(1, MOST_RANKS)
THRESHOLD = members({"needed": number()}, {"expected": or_null(number()), "formula": text()})
TIER = members({"kind": text(), "bytes": count(1)}, {"gb_per_s": or_null(number())})


def _thresholds_form(key: str, value: object) -> None:
    """A THRESHOLD by name; a time of an all-reduce is one of a size."""
    table(text(), THRESHOLD)(key, value)
    members({}, {"all_reduce_us": members({"bytes": count(1)})})(key, value)


PLAN = members(
    {
        "model": members({"name": text()}),
        "target": members(
            {
                "per_node": RANKS,
                "resource": text(empty=True),
                "fabric_resources": table(text(), count(1, MOST_RANKS)),
            },
            {"accelerator": text(), "node": or_null(text())},
        ),
        "engine": one_of("penstock", "vllm", "sglang"),
        "choice": members(
            {"tensor_parallel_size": RANKS, "pipeline_parallel_size": RANKS},
            {"tiers": or_null(rows(TIER))},
        ),
        "memory": rows(members({}, {"shared_memory": count()}), least=1),
        "thresholds": _thresholds_form,
    }
)
"""The members of plan.yaml that are requirements of nodes."""
UNITS: Mapping[str, tuple[str, bool]] = {
    "memory_gb_per_s": ("GB/s", False),
    "storage_gb_per_s": ("GB/s", False),
    "all_reduce_us": ("us", True),
    "requests_waiting": ("requests", True),
    "kv_use": ("of 1", True),
}
"""For each threshold of a plan: its unit, and whether it is a maximum."""


def read_needs(path: Path) -> Needs:
    """The needs of a plan file. PenstockError names the file, the key and the remedy."""
    return replace(needs_of(forms.read_plan(path, PLAN)), plan=path.name)


def needs_of(plan: Mapping[str, Any]) -> Needs:
    """What a plan, which has the form PLAN, requires of each of its nodes."""
    target, choice = plan["target"], plan["choice"]
    ranks = choice["tensor_parallel_size"] * choice["pipeline_parallel_size"]
    has_devices = bool(target["resource"])
    on_node = min(ranks, target["per_node"]) if has_devices else ranks
    nodes = -(-ranks // on_node)
    shared = max(row.get("shared_memory", 0) for row in plan["memory"])
    bounds = (
        _thresholds(plan["thresholds"])
        | _tiers(choice.get("tiers") or ())
        | _network(target.get("node") or "", target["fabric_resources"])
    )
    return Needs(
        plan="plan.yaml",
        model=plan["model"]["name"],
        nodes=nodes,
        devices=on_node if has_devices else 0,
        accelerator=target.get("accelerator", "") if has_devices else "",
        ranks=on_node,
        shared_memory=shared * on_node,
        reduced_bytes=plan["thresholds"].get("all_reduce_us", {}).get("bytes", REDUCED_BYTES),
        fabric_resources=target["fabric_resources"] if nodes > 1 else {},
        bounds=bounds,
    )


def _thresholds(rows: Mapping[str, Any]) -> dict[str, Bound]:
    """Bounds of the plan's thresholds. Newer thresholds that no check measures are left out."""
    found: dict[str, Bound] = {}
    for name, (unit, is_ceiling) in UNITS.items():
        if row := rows.get(name):
            expected = row.get("expected")
            formula = row.get("formula", "")
            found[name] = Bound(row["needed"], expected, unit, is_ceiling, formula)
    return found


def _tiers(tiers: Any) -> dict[str, Bound]:
    """Bounds of tiers with a planned rate. A slower tier still serves, so they only warn."""
    return {
        f"tier_{tier['kind']}_gb_per_s": Bound(
            None, tier["gb_per_s"], "GB/s", formula="rate of the tier in the plan"
        )
        for tier in tiers
        if tier.get("gb_per_s")
    }


def _network(name: str, fabric: Mapping[str, int]) -> dict[str, Bound]:
    """Rate of each adapter of a known type of node. The plan holds with the share of it that its
    prediction counts on.
    """
    if not fabric or name not in hardware.names("nodes"):
        return {}
    from penstock_ops.plan.speed import Constants  # half a second, for few plans

    node = hardware.node(name)
    rate = node.devices().network * node.count * 8 / sum(fabric.values()) / 1e9
    share = Constants(memory=1.0, compute=1.0).link
    formula = f"{share:g} of the plan's node, which has {rate:.4g} ({node.source})"
    return {"rail_gbit_per_s": Bound(share * rate, round(rate, 1), "Gb/s", formula=formula)}
