"""Facts for a chart's templates. Choices of the chart's user are references into its values, where
a plan would have numbers.
"""

from __future__ import annotations

from penstock_ops.deploy.facts import Facts, FrontFacts, Role, ScalingFacts, ServiceFacts
from penstock_ops.deploy.parts import Chosen, Condition, Text, ValueReference
from penstock_ops.deploy.volume_facts import VolumeFacts

GROUPED = "gt (int $.Values.nodes) 1"
PROXIED = "and $.Values.gateway.enabled (not $.Values.gateway.className)"
PICKED = "and $.Values.gateway.enabled $.Values.gateway.className"
KEEPS_KERNELS = "and $.Values.model.pull $.Values.kernels"
BY_JOB = "and $.Values.model.pull (not $.Values.model.perPod)"
WORKLOAD = (
    f"ternary `LeaderWorkerSet` (ternary `StatefulSet` `Deployment` (not (empty "
    f"$.Values.claimTemplates))) ({GROUPED})"
)
DEADLINE = (
    "(add $.Values.progressDeadlineSeconds "
    "(ternary (int $.Values.model.pullTimeout) 0 (not (empty $.Values.model.pull))))"
)
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
        single=Condition(f"not (or ({GROUPED}) $.Values.claimTemplates)"),
        stateful=Condition(f"and (not ({GROUPED})) $.Values.claimTemplates"),
        workload=(_either("leaderworkerset.x-k8s.io/v1", "apps/v1"), Text.at(WORKLOAD)),
        restart_policy=_text("restartPolicy"),
        deadline=ValueReference(DEADLINE),
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
        has_disk=_is("kvDisk.path"),
        model=_text("model.path"),
        claim=Chosen.at(CLAIM),
        host_path=_text("model.hostPath"),
        on_host=_is("model.hostPath"),
        volume_image=_text("model.image"),
        in_image=_is("model.image"),
        pull=_text("model.pull"),
        pulls=_is("model.pull"),
        volumes=_volumes(),
        compiles=_is("kernels"),
        keeps_kernels=Condition(KEEPS_KERNELS),
        claim_is_read=Condition(f"not ({KEEPS_KERNELS})"),
        storage=_text("model.storage"),
        storage_class=_text("model.storageClass"),
        metrics_port=_text("metricsPort"),
        metrics_number=Text.at("ternary `8001` `8000` (eq $.Values.metricsPort `metrics`)"),
        scraped=_is("scrapeAnnotations"),
        is_annotated=Condition("or $.Values.variables $.Values.scrapeAnnotations"),
        monitoring=_text("monitoringNamespace"),
        pull_secrets=_place("imagePullSecrets"),
        service=_service(),
        shares_port=Condition("eq $.Values.metricsPort `http`"),
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
        direct=_is_not("gateway.enabled"),
        proxied=Condition(PROXIED),
        picked=Condition(PICKED),
        balanced=Condition(_both("gateway.enabled", "gateway.plainListener")),
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
        failure_mode=_text("gateway.failureMode"),
        port=_place("gateway.listener"),
        plain_port=_place("gateway.plainListener"),
        has_plain=_is("gateway.plainListener"),
        canary=None,
        mirror=None,
    )


def _volumes() -> VolumeFacts:
    return VolumeFacts(
        mode=_text("model.accessMode"),
        makes_claim=Condition(BY_JOB),
        mounts_claim=Condition(
            "not (or $.Values.model.hostPath $.Values.model.image $.Values.model.perPod)"
        ),
        lists_model=Condition("not (eq $.Values.model.perPod `kept`)"),
        by_job=Condition(BY_JOB),
        by_pod=Condition(_both("model.pull", "model.perPod")),
        download_limit=_text("model.pullTimeout"),
        own_claim=_place("model.perPodClaim"),
        is_ephemeral=Condition("eq $.Values.model.perPod `ephemeral`"),
        templates=_place("claimTemplates"),
        has_templates=_is("claimTemplates"),
        kv=_place("kvDisk.volume"),
        mounts_kv=_is("kvDisk.volume"),
        kv_claim=_place("kvDisk.newClaim"),
        makes_kv_claim=_is("kvDisk.newClaim"),
        reads_devices=_is("kvDisk.udev"),
        nfs=None,
        kv_nfs=None,
        kv_size="",
    )


def _service() -> ServiceFacts:
    return ServiceFacts(
        type=_text("service.type"),
        server_type=Text.at("ternary `ClusterIP` $.Values.service.type $.Values.gateway.enabled"),
        ip_policy=_text("service.ipFamilyPolicy"),
        server_ip_policy=_text("service.serverIpFamilyPolicy"),
        ip_families=_place("service.ipFamilies"),
    )


def _text(path: str) -> Text:
    return Chosen.at(f"$.Values.{path}")


def _place(path: str) -> ValueReference:
    return ValueReference(f"$.Values.{path}")


def _is(path: str) -> Condition:
    return Condition(f"$.Values.{path}")


def _is_not(path: str) -> Condition:
    return Condition(f"not $.Values.{path}")


def _both(one: str, other: str) -> str:
    return f"and $.Values.{one} $.Values.{other}"


def _either(group: str, single: str) -> Text:
    return Text.at(f"ternary `{group}` `{single}` ({GROUPED})")
