"""What a configuration file of `penstock serve` names that a node must give: the weights, and the
tiers of KV.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from penstock.config import gather
from penstock.config.resolve import parse
from penstock.config.sections import TierConfig
from penstock_ops.verify.needs import WEIGHTS, Needs

REMOTE = ("redis", "object")


def remote_tiers(config: Path) -> list[TierConfig]:
    """Tiers on other hosts, in the order of the file."""
    return _remote(parse(gather({}, str(config)))["kv_tier"])


def _remote(tiers: Iterable[TierConfig]) -> list[TierConfig]:
    return [tier for tier in tiers if tier.kind in REMOTE]


def with_serving(needs: Needs, config: Path) -> Needs:
    """`needs` with the directories and stores that the configuration names. PenstockError names
    the file and the line that is wrong.
    """
    raw = gather({}, str(config))
    directories = dict(needs.directories)
    model = Path(str(raw["model"].texts[0])) if "model" in raw else None
    if model and model.is_dir():
        directories.setdefault(WEIGHTS, str(model.resolve()))
    tiers: list[TierConfig] = parse(raw)["kv_tier"]
    for tier in tiers:
        if tier.kind == "disk" and tier.path:
            directories.setdefault("disk", tier.path)
    remote = _remote(tiers)
    return replace(
        needs,
        directories=directories,
        stores=tuple(tier.name for tier in remote),
        config=str(config),
        hosts=tuple(dict.fromkeys([*needs.hosts, *filter(None, map(_host, remote))])),
    )


def _host(tier: TierConfig) -> str:
    """The host of a single Redis; empty for lists of hosts and for buckets."""
    parts = urlsplit(tier.url or "")
    return parts.hostname or "" if parts.scheme in ("redis", "rediss") else ""
