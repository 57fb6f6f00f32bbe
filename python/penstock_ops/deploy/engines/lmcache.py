"""KV tiers of vLLM, by LMCache: the connector's flag, and its environment variables
(docs.lmcache.ai, Configuration). Its sizes are GiB for each rank.
"""

from __future__ import annotations

import json

from penstock_ops.deploy.settings import Settings

CONNECTOR = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
GIB = 2**30
BUFFER = 5
"""GiB for each rank through which LMCache copies to its other tiers, its default for a CPU tier."""
GDS_BUFFER = 8192
"""MiB of device memory for GPUDirect Storage, as its documentation and source 001 have it."""


def lmcache_flags(settings: Settings) -> list[str]:
    if not settings.tiers:
        return []
    return [f"--kv-transfer-config={json.dumps(CONNECTOR, separators=(',', ':'))}"]


def lmcache_environment(settings: Settings) -> list[dict[str, object]]:
    """Variables for the tiers of the settings; empty without tiers."""
    found: dict[str, str] = {}
    for tier in (settings.tiers or {}).values():
        size = f"{(tier.size_bytes or 0) / settings.ranks / GIB:g}"
        if tier.kind == "ram":
            found["LMCACHE_MAX_LOCAL_CPU_SIZE"] = size
        elif tier.kind == "redis":
            found["LMCACHE_REMOTE_URL"] = tier.url or ""
        elif tier.gds:
            found |= {
                "LMCACHE_GDS_PATH": tier.path or "",
                "LMCACHE_CUFILE_BUFFER_SIZE": str(GDS_BUFFER),
                "LMCACHE_MAX_LOCAL_DISK_SIZE": size,
            }
        else:
            found["LMCACHE_LOCAL_DISK"] = f"file://{tier.path}"
            found["LMCACHE_MAX_LOCAL_DISK_SIZE"] = size
    if found and "LMCACHE_MAX_LOCAL_CPU_SIZE" not in found:
        found |= {"LMCACHE_LOCAL_CPU": "False", "LMCACHE_MAX_LOCAL_CPU_SIZE": str(BUFFER)}
    if found:
        # Without it, LMCache reports its use to its developers.
        found["LMCACHE_TRACK_USAGE"] = "false"
    return [{"name": name, "value": value} for name, value in found.items()]
