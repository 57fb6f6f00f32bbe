"""The configuration fingerprint: settings that all nodes of an engine must share, worded for error
messages.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from penstock.config import EngineConfig
from penstock.model import ModelInfo

OWN = {"model.path", "parallel.node_rank", "parallel.master", "parallel.token_file"}
"""Settings that may differ between nodes. The number of threads and the instruction set may differ
too.
"""


def config_fingerprint(config: EngineConfig, info: ModelInfo) -> dict[str, str]:
    """The shared settings, by name. None of them may be secret, because they are sent
    unencrypted.
    """
    from penstock._native import __version__

    found = {
        "the version": __version__,
        "the model": describe(info),
        "the backend": config.compute.backend,
    }
    whole = asdict(config)
    for section in ("model", "cache", "scheduler", "parallel"):
        for name, value in whole[section].items():
            if f"{section}.{name}" not in OWN:
                found[f"{section}.{name}"] = str(value)
    tiers = [f"{tier.name} {tier.size_bytes or ''}".strip() for tier in config.tiers.tiers]
    found["tiers"] = ", ".join(tiers) or "none"
    found["tiers.chunk_tokens"] = str(config.tiers.chunk_tokens)
    return found


def describe(info: ModelInfo) -> str:
    """Text that identifies a model by its metadata. The weights are compared after they are
    loaded.
    """
    spec = info.spec
    digest = hashlib.blake2b(
        (spec.to_json() + info.weights.to_json()).encode(), digest_size=4
    ).hexdigest()
    layers = f"{len(spec.layers)} layers of {spec.hidden}"
    return f"{info.architecture} with {layers} ({info.source}, {digest})"
