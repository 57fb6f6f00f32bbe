"""KV tiers (stores behind the KV pool) of a deployment: from `--kv-tier`, or from the plan's
choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config.sections import TierConfig, without_password
from penstock.config.tiers import Tier
from penstock.core import InvalidValueError, PenstockError

Tiers = dict[str, TierConfig]
"""Tiers in lookup order, keyed by their `--kv-tier` text."""


def tiers_of(texts: Sequence[str], plan: Mapping[str, Any], directory: str) -> Tiers:
    """The tiers given by the flags `texts`, or those of the plan if there are none. `directory` is
    for a disk tier of the plan; empty if hosts have no common directory.

    PenstockError for SGLang, for tiers that LMCache does not have, several disks, a relative
    directory, or a password, which would be readable in the manifest.
    """
    found: Tiers = {}
    for text in texts or _planned(plan, directory):
        try:
            tier = Tier().parse(text)
        except ValueError as error:
            raise InvalidValueError("--kv-tier", text, Tier().expected()) from error
        if without_password(text) != text:
            raise PenstockError("--kv-tier: the password of a URL would be in the manifest")
        if tier.kind == "disk" and not (tier.path or "").startswith("/"):
            raise InvalidValueError("--kv-tier", text, "an absolute path")
        found[text] = tier
    if found and plan["engine"] == "sglang":
        raise PenstockError("--kv-tier is Penstock's, or vLLM's by LMCache; the plan is SGLang's")
    if plan["engine"] == "vllm":
        _check_lmcache(found)
    if sum(tier.kind == "disk" for tier in found.values()) > 1:
        raise PenstockError("--kv-tier: a replica has a volume for one disk")
    return found


def _check_lmcache(tiers: Tiers) -> None:
    """Raise InvalidValueError for a tier that LMCache's variables cannot describe."""
    kinds = [tier.kind for tier in tiers.values()]
    for text, tier in tiers.items():
        if tier.kind == "object" or tier.quota != 1.0 or tier.daily_write_bytes or tier.ttl_seconds:
            expected = "for vLLM ram:SIZE, disk:PATH,SIZE[,gds=true] or redis://HOST:PORT"
            raise InvalidValueError("--kv-tier", text, expected)
        if kinds.count(tier.kind) > 1:
            raise InvalidValueError("--kv-tier", text, f"one {tier.kind} tier, as LMCache has")


def _planned(plan: Mapping[str, Any], directory: str) -> list[str]:
    """`--kv-tier` texts for the tiers in the plan's choice, with one replica's share of their size.
    Empty for other engines, which configure tiers differently.
    """
    choice, per_node = plan["choice"], int(plan["target"]["per_node"])
    if plan["engine"] != "penstock":
        return []
    devices = int(choice["tensor_parallel_size"]) * int(choice["pipeline_parallel_size"])
    found = []
    for tier in choice.get("tiers") or ():
        size = f"{int(tier['bytes']) * devices // per_node >> 20}MiB"
        if tier["kind"] == "disk" and not directory:
            raise PenstockError(
                f"the plan counts on a disk of {size} for each replica: say where it is by "
                f"--kv-tier disk:PATH,{size}, after the plan's other tiers"
            )
        found.append(f"disk:{directory},{size}" if tier["kind"] == "disk" else f"ram:{size}")
    return found
