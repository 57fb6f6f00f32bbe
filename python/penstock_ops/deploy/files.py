"""The files of a deployment in the order to apply them, each with the condition for writing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_ops.deploy.facts import Facts, FrontFacts, ScalingFacts
from penstock_ops.deploy.kinds.claim import claim, kv_claim
from penstock_ops.deploy.kinds.deployment import deployment
from penstock_ops.deploy.kinds.disruption_budget import disruption_budget, gateway_disruption_budget
from penstock_ops.deploy.kinds.gateway import gateway
from penstock_ops.deploy.kinds.gateway_account import (
    gateway_account,
    gateway_role,
    gateway_role_binding,
)
from penstock_ops.deploy.kinds.gateway_config import gateway_config
from penstock_ops.deploy.kinds.gateway_deployment import gateway_deployment
from penstock_ops.deploy.kinds.gateway_service import gateway_service
from penstock_ops.deploy.kinds.horizontal_pod_autoscaler import horizontal_pod_autoscaler
from penstock_ops.deploy.kinds.http_route import http_route, plain_http_route
from penstock_ops.deploy.kinds.inference_pool import inference_pool
from penstock_ops.deploy.kinds.leader_worker_set import leader_worker_set
from penstock_ops.deploy.kinds.network_policy import gateway_network_policy, network_policy
from penstock_ops.deploy.kinds.persistent_volume import kv_persistent_volume, persistent_volume
from penstock_ops.deploy.kinds.pod_monitor import gateway_pod_monitor, pod_monitor
from penstock_ops.deploy.kinds.pull_job import pull_job
from penstock_ops.deploy.kinds.scaled_object import scaled_object
from penstock_ops.deploy.kinds.service import service
from penstock_ops.deploy.kinds.stateful_set import stateful_set
from penstock_ops.deploy.kinds.topology import topology
from penstock_ops.deploy.parts import Truth

Made = dict[str, object]


@dataclass(frozen=True, slots=True)
class File:
    """A file with one object: its name, when to write it, and the function that creates the
    object.
    """

    name: str
    condition: Callable[[Facts], Truth]
    make: Callable[[Facts], Made]


def _always(_: Facts) -> Truth:
    return True


def _fronted(facts: Facts) -> Truth:
    return facts.fronted


def _with_front(make: Callable[[Facts, FrontFacts], Made]) -> Callable[[Facts], Made]:
    def made(facts: Facts) -> Made:
        assert facts.front is not None
        return make(facts, facts.front)

    return made


def _with_scaling(make: Callable[[Facts, ScalingFacts], Made]) -> Callable[[Facts], Made]:
    def made(facts: Facts) -> Made:
        assert facts.scaling is not None
        return make(facts, facts.scaling)

    return made


WORKLOADS = ("deployment.yaml", "stateful-set.yaml", "leader-worker-set.yaml")
"""Files with the replicas. With Ray, RayClusters replace them."""

FILES = (
    File("topology.yaml", lambda facts: facts.has_topology, topology),
    File("volume.yaml", lambda facts: facts.volumes.nfs is not None, persistent_volume),
    File("claim.yaml", lambda facts: facts.volumes.makes_claim, claim),
    File("kv-volume.yaml", lambda facts: facts.volumes.kv_nfs is not None, kv_persistent_volume),
    File("kv-claim.yaml", lambda facts: facts.volumes.makes_kv_claim, kv_claim),
    File("pull-job.yaml", lambda facts: facts.volumes.by_job, pull_job),
    File("leader-worker-set.yaml", lambda facts: facts.grouped, leader_worker_set),
    File("deployment.yaml", lambda facts: facts.single, deployment),
    File("stateful-set.yaml", lambda facts: facts.stateful, stateful_set),
    File("service.yaml", _always, service),
    File("disruption-budget.yaml", _always, disruption_budget),
    File("network-policy.yaml", _always, network_policy),
    File("pod-monitor.yaml", lambda facts: facts.monitored, pod_monitor),
    File("scaled-object.yaml", lambda facts: facts.by_keda, _with_scaling(scaled_object)),
    File(
        "horizontal-pod-autoscaler.yaml",
        lambda facts: facts.by_metrics,
        _with_scaling(horizontal_pod_autoscaler),
    ),
    File("gateway-account.yaml", _fronted, gateway_account),
    File("gateway-role.yaml", _fronted, _with_front(gateway_role)),
    File("gateway-role-binding.yaml", _fronted, gateway_role_binding),
    File("gateway-config.yaml", lambda facts: facts.proxied, _with_front(gateway_config)),
    File("gateway-deployment.yaml", _fronted, _with_front(gateway_deployment)),
    File("gateway-service.yaml", _fronted, _with_front(gateway_service)),
    File("gateway-disruption-budget.yaml", _fronted, gateway_disruption_budget),
    File("gateway-network-policy.yaml", _fronted, _with_front(gateway_network_policy)),
    File(
        "gateway-pod-monitor.yaml",
        lambda facts: facts.front_monitored,
        _with_front(gateway_pod_monitor),
    ),
    File("inference-pool.yaml", lambda facts: facts.picked, _with_front(inference_pool)),
    File("gateway.yaml", lambda facts: facts.picked, _with_front(gateway)),
    File("http-route.yaml", lambda facts: facts.picked, _with_front(http_route)),
    File("plain-http-route.yaml", lambda facts: facts.balanced, plain_http_route),
)
