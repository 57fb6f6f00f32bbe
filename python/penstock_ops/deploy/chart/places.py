"""Facts for a chart's templates. Choices of the chart's user are references into its values, where
a plan would have numbers.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts, Role, ScalingFacts
from penstock_ops.deploy.parts import Chosen, Condition, Place, Text

GROUPED = "gt (int $.Values.nodes) 1"
PROXIED = "and $.Values.gateway.enabled (not $.Values.gateway.className)"
PICKED = "and $.Values.gateway.enabled $.Values.gateway.className"
KEEPS_KERNELS = "and $.Values.model.pull $.Values.kernels"
CLAIM = "$.Values.model.claim | default (printf `%s-model` $.Release.Name)"


def places() -> Facts:
    """Facts for the chart's templates."""
    return Facts(
        name=Text.at("$.Release.Name"),
        engine=_text("engine"),
        image=_text("image"),
        replicas=_place("replicas"),
        nodes=_place("nodes"),
        grouped=Condition(GROUPED),
        single=Condition(f"not ({GROUPED})"),
        workload=(
            _either("leaderworkerset.x-k8s.io/v1", "apps/v1"),
            _either("LeaderWorkerSet", "Deployment"),
        ),
        restart_policy=_text("restartPolicy"),
        deadline=_place("progressDeadlineSeconds"),
        server=_role("server"),
        node=_role("node"),
        variables=_place("variables"),
        has_variables=_is("variables"),
        node_selector=_place("nodeSelector"),
        tolerations=_place("tolerations"),
        resources=_place("resources"),
        pod_security=_place("podSecurityContext"),
        container_security=_place("securityContext"),
        shared_memory=_text("sharedMemory"),
        disk=_text("kvDisk.path"),
        disk_size=_text("kvDisk.size"),
        has_disk=_is("kvDisk.path"),
        model=_text("model.path"),
        claim=Chosen.at(CLAIM),
        host_path=_text("model.hostPath"),
        on_host=_is("model.hostPath"),
        volume_image=_text("model.image"),
        in_image=_is("model.image"),
        in_claim=Condition("not (or $.Values.model.hostPath $.Values.model.image)"),
        pull=_text("model.pull"),
        pulls=_is("model.pull"),
        compiles=_is("kernels"),
        keeps_kernels=Condition(KEEPS_KERNELS),
        claim_is_read=Condition(f"not ({KEEPS_KERNELS})"),
        storage=_text("model.storage"),
        storage_class=_text("model.storageClass"),
        metrics_port=_text("metricsPort"),
        own_metrics=Condition("eq $.Values.metricsPort `metrics`"),
        topology=_place("topology"),
        has_topology=_is("topology"),
        monitored=_is("podMonitor"),
        api_key_secret=_text("apiKeySecret"),
        has_key=_is("apiKeySecret"),
        fixed=_is_not("autoscaling.maxReplicas"),
        by_keda=Condition(_both("autoscaling.maxReplicas", "autoscaling.prometheus")),
        by_metrics=Condition(
            "and $.Values.autoscaling.maxReplicas (not $.Values.autoscaling.prometheus)"
        ),
        scaling=_scaling(),
        fronted=_is("gateway.enabled"),
        proxied=Condition(PROXIED),
        picked=Condition(PICKED),
        front_monitored=Condition(_both("gateway.enabled", "podMonitor")),
        front=_front(),
    )


def _role(key: str) -> Role:
    return Role(
        command=_place(f"{key}.command"),
        env=_place(f"{key}.env"),
        ports=_place(f"{key}.ports"),
        startup=_place(f"{key}.startupProbe"),
        readiness=_place(f"{key}.readinessProbe"),
        liveness=_place(f"{key}.livenessProbe"),
    )


def _scaling() -> ScalingFacts:
    return ScalingFacts(
        most=_place("autoscaling.maxReplicas"),
        prometheus=_text("autoscaling.prometheus"),
        waiting=_text("autoscaling.waiting.metric"),
        waiting_most=_text("autoscaling.waiting.threshold"),
        kv_use=_text("autoscaling.kvUse.metric"),
        kv_most=_text("autoscaling.kvUse.threshold"),
        behavior=_place("autoscaling.behavior"),
    )


def _front() -> FrontFacts:
    return FrontFacts(
        image=_text("gateway.image"),
        gateway_class=_text("gateway.className"),
        picks=_is("gateway.className"),
        proxies=_is_not("gateway.className"),
        tls_secret=_text("gateway.tlsSecret"),
        has_tls=_is("gateway.tlsSecret"),
    )


def _text(path: str) -> Text:
    return Chosen.at(f"$.Values.{path}")


def _place(path: str) -> Place:
    return Place(f"$.Values.{path}")


def _is(path: str) -> Condition:
    return Condition(f"$.Values.{path}")


def _is_not(path: str) -> Condition:
    return Condition(f"not $.Values.{path}")


def _both(one: str, other: str) -> str:
    return f"and $.Values.{one} $.Values.{other}"


def _either(group: str, single: str) -> Text:
    return Text.at(f"ternary `{group}` `{single}` ({GROUPED})")
