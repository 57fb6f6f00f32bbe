"""KV tiers of a node (RAM, disk) behind the KV memory of its devices: their capacity and speed for
one replica.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.config.kinds import Bytes
from penstock.core import InvalidValueError
from penstock_ops.plan.hardware import Target
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.prefixes import Store

KINDS = ("ram", "disk")
SIZE = Bytes(1, 1 << 60)


@dataclass(frozen=True, slots=True)
class Tier:
    """RAM or disk of a node that stores KV. The node's devices share it equally."""

    kind: str
    size: int
    """Bytes of the tier on each node."""
    rate: float | None
    """GB per second that a node reads from the tier; None if only the PCIe bandwidth of the devices
    limits it.
    """


def parse_tiers(text: str | None) -> tuple[Tier, ...]:
    """Parse the value of `--tiers`, `ram:SIZE[@GB/S],disk:SIZE@GB/S`, in the order in which tiers
    are looked up.
    """
    tiers = tuple(_parse(text or "", each) for each in (text or "").split(",") if each)
    if len({tier.kind for tier in tiers}) < len(tiers):
        raise InvalidValueError("--tiers", text, "each kind once")
    return tiers


def _parse(text: str, each: str) -> Tier:
    kind, _, rest = each.partition(":")
    size, at, rate = rest.partition("@")
    try:
        tier = Tier(kind, SIZE.parse(size), float(rate) if at else None)
        if kind not in KINDS or (kind == "disk" and not at):
            raise ValueError
        if tier.rate is not None and not 0 < tier.rate < math.inf:
            raise ValueError
    except ValueError as error:
        expected = "ram:SIZE[@GB/S],disk:SIZE@GB/S"
        raise InvalidValueError("--tiers", text, expected) from error
    return tier


def keeps(memory: Memory) -> bool:
    """Whether the prompts of a replica can share KV. They cannot with linear attention, whose
    states are not stored, nor with data-parallel attention, which assigns requests to ranks
    regardless of their prompts.
    """
    rank = memory.fullest
    return memory.cut.shares == 1 and rank.growth > 0 and not rank.state


def store(tier: Tier, memory: Memory, target: Target) -> Store:
    """The share of a tier that one replica has. Raises InvalidValueError if its rate is unknown."""
    devices = min(target.per_node, target.count)
    growth = max(rank.growth for rank in memory.ranks)
    rate = tier.rate * 1e9 / devices if tier.rate else target.accelerator.pcie
    if not rate:
        raise InvalidValueError("--tiers", tier.kind, "a rate, KIND:SIZE@GB/S")
    return Store(int(tier.size / devices / growth), growth / rate)
