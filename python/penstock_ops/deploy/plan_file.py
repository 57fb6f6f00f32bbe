"""Reads a plan file for `penstock deploy`: the members that it uses, with their types and
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    truth,
    wrong_value,
)

MOST_RANKS = 1024
"""Maximum of the tensor and the pipeline parallel size, and of the devices in a node."""
MOST_REPLICAS = 10_000
RESOURCE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/"
"""Characters that a Kubernetes resource name may have."""


def read_plan(path: Path) -> Mapping[str, Any]:
    """Read and validate a plan. PenstockError names the file, the key and the remedy."""
    return forms.read_plan(path, _form)


def _form(key: str, plan: object) -> None:
    PLAN(key, plan)
    assert isinstance(plan, dict)
    if not plan["target"]["resource"]:
        rows(FREE_ROW)("memory", plan["memory"])


RANKS = count(1, MOST_RANKS)
CHOICE = members(
    {
        "tensor_parallel_size": RANKS,
        "pipeline_parallel_size": RANKS,
        "expert_parallel": truth,
        "attention_by_requests": truth,
        "replicas": count(1, MOST_REPLICAS),
        "max_num_batched_tokens": count(1),
        "max_num_seqs": count(1),
        "max_model_len": count(1),
        "kv_cache_dtype": text(),
        "memory_fraction": or_null(number(0.01, 1.0)),
    },
    {"tiers": or_null(rows(members({"kind": one_of("ram", "disk"), "bytes": count(1)})))},
)
ROW = members(
    {
        "ranks": rows(count(0, MOST_RANKS**2), least=1),
        "total": count(),
        "weights": count(),
        "kv": count(1),
    },
    {"shared_memory": count(), "kept_free": count(), "left": count()},
)
FREE_ROW = members({"kept_free": count()})
"""Member that memory rows of a plan for CPUs also have: other programs use that memory."""


def rank_row(key: str, value: object) -> None:
    ROW(key, value)
    assert isinstance(value, dict)
    kept, left = value.get("kept_free", 0), value.get("left", 0)
    if kept > value["total"]:
        raise wrong_value(f"{key}.kept_free", kept, f"at most {key}.total")
    if kept + left > value["total"]:
        raise wrong_value(f"{key}.left", left, f"at most {key}.total without what is kept free")


SECONDS = count(0, 10**7)
VOLUME = members({"seconds": SECONDS, "pull_seconds": SECONDS})
NEEDED = members({"needed": number()})
PLAN = members(
    {
        "model": members({"name": text(), "runs": text()}),
        "target": members(
            {
                "per_node": RANKS,
                "resource": text(RESOURCE, empty=True),
                "fabric_resources": table(text(RESOURCE), count(1, MOST_RANKS)),
            }
        ),
        "engine": one_of("penstock", "vllm", "sglang"),
        "choice": CHOICE,
        "memory": rows(rank_row, least=1),
        "start": members(
            {
                "image": members({"seconds": SECONDS}),
                "weights": members(dict.fromkeys(("claim", "host_path", "image"), VOLUME)),
            }
        ),
        "thresholds": members({"requests_waiting": NEEDED, "kv_use": NEEDED}),
    }
)
