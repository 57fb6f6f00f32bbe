"""Engines in pods: command, probes, environment. One file for each engine, found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock_ops.deploy.engines import penstock, sglang, vllm
from penstock_ops.deploy.probes import at_health
from penstock_ops.deploy.quoting import Word
from penstock_ops.deploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Pods:
    """How an engine runs in pods."""

    command: Callable[[Settings, bool], list[Word]]
    """Command of the leader, or with False of another node."""
    environment: Callable[[Settings, bool], list[dict[str, object]]]
    probes: Callable[[Settings, bool], dict[str, object]]
    metrics_port: str
    """Name of the port that Prometheus scrapes."""
    root: bool
    """Whether the published image runs as root and writes outside /tmp."""
    restart_policy: str
    """LeaderWorkerSet's policy for the end of a group's pod."""
    on_ray: bool = False
    """Whether it has an executor with Ray actors as ranks."""
    waiting: str = "vllm:num_requests_waiting"
    """Metric of the number of waiting requests."""
    kv_use: str = "vllm:kv_cache_usage_perc"
    """Metric of the share of KV in use."""


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
    ),
    "sglang": Pods(
        sglang.command,
        sglang.environment,
        at_health,
        "http",
        True,
        "RecreateGroupOnPodRestart",
        waiting="sglang:num_queue_reqs",
        kv_use="sglang:token_usage",
    ),
}


def pods(settings: Settings) -> Pods:
    return ENGINES[settings.engine]
