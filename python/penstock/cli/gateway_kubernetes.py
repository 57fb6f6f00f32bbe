"""Pools of `penstock gateway` whose replicas are pods, and the related custom resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.config import ClusterAccess
from penstock.core import InvalidValueError, PenstockError
from penstock.inference_extension import cluster_rules

MEMBERS = ("inference_pool", "namespace", "selector", "ports")
RESOURCES = "[]"
"""The cluster's resources (JSON) before the cluster has reported any."""


class WrongSettingError(InvalidValueError):
    """Invalid settings of the gateway."""

    def __init__(self, message: str) -> None:
        PenstockError.__init__(self, message)


def pods_of(value: object, place: str, reach: Callable[[], ClusterAccess]) -> dict[str, object]:
    """The source of replicas (`Pods` in crates/gateway/fleet/src/backend.rs) that a pool's member
    `kubernetes` describes. Its value is the name of an InferencePool, with or without a namespace,
    or a mapping.
    """
    given = dict(value) if isinstance(value, dict) else _named(value, place)
    unknown = [str(key) for key in given if key not in MEMBERS]
    if unknown:
        there = ", ".join(MEMBERS)
        raise WrongSettingError(f"{place}: kubernetes has no {unknown[0]!r}; there are {there}")
    pool, selector = given.get("inference_pool"), _selector(given.get("selector"), place)
    ports = given.get("ports", [])
    if not isinstance(ports, list) or not all(_is_port(port) for port in ports):
        raise WrongSettingError(f"{place}: ports is a list of numbers up to 65535")
    if pool is None and not (selector and ports):
        raise WrongSettingError(
            f"{place}: kubernetes names an inference_pool, or a selector and ports"
        )
    access = reach()
    found: dict[str, object] = {
        "cluster": dict(access.cluster),
        "namespace": str(given.get("namespace") or access.namespace),
        "inference_pool": pool,
        "selector": selector,
        "ports": ports,
    }
    return {key: item for key, item in found.items() if item not in (None, [])}


def _named(value: object, place: str) -> dict[object, object]:
    if not isinstance(value, str) or not value:
        raise WrongSettingError(
            f"{place}: kubernetes is the name of an InferencePool, or a mapping"
        )
    namespace, _, name = value.rpartition("/")
    return {"inference_pool": name, **({"namespace": namespace} if namespace else {})}


def _selector(value: object, place: str) -> str | None:
    """The label selector as text, from a mapping of labels or a text in kubectl's syntax; None
    without one.
    """
    if isinstance(value, dict):
        return ",".join(f"{key}={label}" for key, label in value.items())
    if value is None or isinstance(value, str):
        return value
    raise WrongSettingError(
        f"{place}: selector is a mapping of labels, or a text such as app=llama"
    )


def _is_port(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def has_pods(found: Mapping[str, object]) -> bool:
    """Whether any pool has pods as replicas."""
    return any(_pods(pool) is not None for pool in _listed(found))


def add_cluster_rules(found: dict[str, object], resources: str) -> None:
    """Add rules and objectives of the cluster's resources (JSON) for pools that are InferencePools.
    Rules and objectives that `found` already has take precedence. Invalid resources become
    warnings.
    """
    pools = _pools(found)
    if not pools:
        return
    rules = cluster_rules(resources, pools)
    for key, more in (("models", rules.models), ("objectives", rules.objectives)):
        own = found.get(key, [])
        assert isinstance(own, list)
        merged = list(own)
        # An objective has one entry for each pool, so only names that were in `found` before this
        # call count as taken.
        taken = {one.get("name") for one in own if isinstance(one, dict)}
        for one in more:
            if one["name"] not in taken:
                merged.append(one)
                if key == "models":
                    taken.add(one["name"])
        if merged:
            found[key] = merged
    if rules.findings:
        found["warnings"] = [str(one) for one in rules.findings]


def _pools(found: Mapping[str, object]) -> dict[tuple[str, str], str]:
    """Name of the gateway's pool for each InferencePool, by namespace and name. If several pools
    match, the first one counts.
    """
    pools: dict[tuple[str, str], str] = {}
    for pool in _listed(found):
        pods = _pods(pool)
        if pods is not None and "inference_pool" in pods:
            place = (str(pods["namespace"]), str(pods["inference_pool"]))
            pools.setdefault(place, str(pool["name"]))
    return pools


def _listed(found: Mapping[str, object]) -> list[dict[str, object]]:
    listed = found.get("pools", [])
    pools = listed if isinstance(listed, list) else []
    return [pool for pool in pools if isinstance(pool, dict)]


def _pods(pool: Mapping[str, object]) -> Mapping[str, object] | None:
    source = pool.get("source")
    pods = source.get("kubernetes") if isinstance(source, dict) else None
    return pods if isinstance(pods, dict) else None
