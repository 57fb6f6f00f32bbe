"""How each engine (Penstock, vLLM, SGLang) runs in pods: command, probes, environment. Each has a
file of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock_ops.deploy.engines import penstock, sglang, vllm
from penstock_ops.deploy.probes import at_health
from penstock_ops.deploy.quoting import Word
from penstock_ops.deploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Pods:
    """The properties of an engine in pods. The boolean argument of the functions is True for a
    replica's leader (node 0), False for its other nodes.
    """

    command: Callable[[Settings, bool], list[Word]]
    """Command of the engine's container."""
    environment: Callable[[Settings, bool], list[dict[str, object]]]
    probes: Callable[[Settings, bool], dict[str, object]]
    metrics_port: str
    """Name of the container port that Prometheus scrapes."""
    root: bool
    """Whether the engine's published image runs as root and writes outside /tmp."""
    restart_policy: str
    """LeaderWorkerSet's restart policy, for the case that one pod of a group ends."""
    on_ray: bool = False
    """Whether the engine can run its ranks as Ray actors."""
    both_families: bool = True
    """Whether the server accepts IPv4 and IPv6 connections at the same time."""
    waiting: str = "vllm:num_requests_waiting"
    """Name of the metric for the number of waiting requests."""
    kv_use: str = "vllm:kv_cache_usage_perc"
    """Name of the metric for the share of KV cache in use (0 to 1)."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the engine has everywhere, in pods and on hosts."""


ENGINES: Mapping[str, Pods] = {
    "penstock": Pods(
        penstock.command,
        penstock.environment,
        penstock.probes,
        "metrics",
        False,
        "None",
        on_ray=True,
    ),
    "vllm": Pods(
        vllm.command,
        vllm.environment,
        at_health,
        "http",
        True,
        "RecreateGroupOnPodRestart",
        on_ray=True,
        variables=vllm.NO_STATISTICS,
    ),
    "sglang": Pods(
        sglang.command,
        sglang.environment,
        at_health,
        "http",
        True,
        "RecreateGroupOnPodRestart",
        both_families=False,
        waiting="sglang:num_queue_reqs",
        kv_use="sglang:token_usage",
    ),
}


def pods(settings: Settings) -> Pods:
    return ENGINES[settings.engine]
