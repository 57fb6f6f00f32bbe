"""`deploy lint`: our own manifests have no findings, mutated ones have theirs, and so do those that
were published.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock.core import PenstockError
from penstock_ops.deploy.lint import lint
from penstock_ops.deploy.object_rules import RULES
from tests.deploy.conftest import HERE, PLANS, Written

PUBLISHED = Path(__file__).parents[1] / "fixtures/deploy"


def found(tmp_path: Path, files: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rule and severity of all findings."""
    folder = tmp_path / "checked"
    folder.mkdir()
    for name, manifest in files.items():
        (folder / name).write_text(yaml.safe_dump(manifest))
    return [(finding.rule, finding.severity) for _, finding in lint([folder])]


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_our_own_manifests_have_no_findings(written: Written, tmp_path: Path, kind: str) -> None:
    image = "penstock:1"
    front = ("--gateway", "istio", "--gateway-image", image, "--autoscale-to", "9")
    files = written(kind, "--pull", "org/name", "--pod-monitor", "--rdma-devices", "mlx5_0", *front)
    assert not found(tmp_path, files)


def test_our_own_policy_of_adapters_has_no_findings(written: Written, tmp_path: Path) -> None:
    interfaces = ",".join(f"ibs{number}" for number in range(8))
    files = written("sglang-two-nodes", "--nic-interfaces", interfaces)
    assert not found(tmp_path, files)


def container(group: Any, part: str = "leader") -> Any:
    pod = group["spec"]["leaderWorkerTemplate"][f"{part}Template"]["spec"]
    return pod["containers"][0]


def variable(name: str, value: object) -> Callable[[Any, Any], None]:
    def change(group: Any, service: Any) -> None:
        container(group)["env"].append({"name": name, "value": value})

    return change


def within(path: str, value: object) -> Callable[[Any, Any], None]:
    """Sets `a.b.c` of the group."""

    def change(group: Any, service: Any) -> None:
        *parents, last = path.split(".")
        at = group
        for key in parents:
            at = at[int(key) if key.isdecimal() else key]
        at[last] = value

    return change


POD = "spec.leaderWorkerTemplate.leaderTemplate.spec"
FIRST = f"{POD}.containers.0"
MUTATIONS: dict[str, tuple[Callable[[Any, Any], None], str, str]] = {
    "no leader": (within("spec.leaderWorkerTemplate.size", 0), "group", "error"),
    "a size that is a text": (within("spec.leaderWorkerTemplate.size", "2"), "group", "error"),
    "no rollout": (
        within("spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable", 0),
        "group",
        "error",
    ),
    "both wait": (within("spec.startupPolicy", "LeaderReady"), "group", "error"),
    "too few pods": (within("spec.leaderWorkerTemplate.size", 1), "ranks", "error"),
    "too few devices": (
        within(f"{FIRST}.resources", {"limits": {"nvidia.com/gpu": "4"}}),
        "ranks",
        "error",
    ),
    "stages on parts of pods": (
        lambda group, _: container(group).update(
            command=["python3", "-m", "sglang.launch_server", "--tp-size=6", "--pp-size=3"]
        ),
        "stages",
        "error",
    ),
    "a stage over pods without RDMA": (
        within(f"{FIRST}.resources", {"limits": {"nvidia.com/gpu": "8"}}),
        "fabric",
        "warning",
    ),
    "unequal devices": (
        within(f"{FIRST}.resources.requests", {"nvidia.com/gpu": "4"}),
        "devices",
        "error",
    ),
    "half a device": (
        within(f"{FIRST}.resources", {"limits": {"nvidia.com/gpu": "0.5"}}),
        "devices",
        "error",
    ),
    "memory that is not pinned": (within(f"{FIRST}.securityContext", {}), "rdma", "error"),
    "a small /dev/shm": (
        lambda group, _: container(group)["volumeMounts"].pop(),
        "shared-memory",
        "error",
    ),
    "a disk as /dev/shm": (within(f"{POD}.volumes.2.emptyDir", {}), "shared-memory", "error"),
    "another volume": (within(f"{FIRST}.volumeMounts.0.name", "models"), "volume", "error"),
    "links": (within(f"{POD}.enableServiceLinks", True), "service-links", "warning"),
    "a late probe": (
        within(f"{FIRST}.readinessProbe.initialDelaySeconds", 1500),
        "probe-delay",
        "warning",
    ),
    "a worker that is asked": (
        lambda group, _: container(group, "worker").update(
            livenessProbe={"httpGet": {"path": "/health", "port": 8000}}
        ),
        "worker-probe",
        "error",
    ),
    "privileged": (within(f"{FIRST}.securityContext.privileged", True), "privileged", "warning"),
    "latest": (within(f"{FIRST}.image", "registry:5000/engine:latest"), "image", "warning"),
    "no tag": (within(f"{FIRST}.image", "registry:5000/engine"), "image", "warning"),
    "no image": (within(f"{FIRST}.image", ""), "image", "error"),
    "a secret": (variable("HF_TOKEN", "hf_abc"), "secret", "error"),
    "a number as a value": (variable("NCCL_DEBUG", 1), "env", "error"),
    "a boolean as a value": (variable("VERBOSE", True), "env", "error"),
    "twice": (variable("GLOO_SOCKET_IFNAME", "eth1"), "env", "warning"),
    "a variable that is gone": (variable("NCCL_IB_CUDA_SUPPORT", "1"), "nccl", "warning"),
    "a default": (variable("NCCL_IB_DISABLE", "0"), "nccl", "warning"),
    "a legacy level": (variable("NCCL_NET_GDR_LEVEL", "1"), "nccl", "warning"),
    "a fixed index": (variable("NCCL_IB_GID_INDEX", "3"), "nccl", "warning"),
    "an algorithm": (variable("NCCL_ALGO", "Ring"), "nccl", "warning"),
    "a log": (variable("NCCL_DEBUG", "INFO"), "nccl", "warning"),
    "a prefix": (variable("NCCL_IB_HCA", "mlx5_0, mlx5_1"), "nccl", "warning"),
    "a service of others": (
        lambda _, service: service["spec"].update(selector={"app": "sglang"}),
        "selector",
        "error",
    ),
}


FRONT = ("--gateway", "istio", "--gateway-image", "p:1", "--pull", "a/b", "--pod-monitor")
Whole = Callable[[dict[str, Any]], object]
TOGETHER: dict[str, tuple[str, Whole, str, str]] = {
    "too many nodes": (
        "sglang-two-nodes",
        lambda files: container(files["leader-worker-set.yaml"])["command"].append("--nnodes=4"),
        "group",
        "error",
    ),
    "a probe of a port without a name": (
        HERE,
        lambda files: engine(files)["readinessProbe"]["httpGet"].update(port="api"),
        "probe-port",
        "error",
    ),
    "a server that cannot drain": (
        HERE,
        lambda files: pod(files).update(terminationGracePeriodSeconds=30),
        "grace",
        "error",
    ),
    "a server that drains after a hook": (
        HERE,
        lambda files: pod(files).update(terminationGracePeriodSeconds=65),
        "grace",
        "error",
    ),
    "a server that aborts its requests": (
        "vllm-one-node",
        lambda files: engine(files)["command"].remove("--shutdown-timeout=60"),
        "drain",
        "warning",
    ),
    "a server that drains after a command": (
        HERE,
        lambda files: engine(files)["lifecycle"].update(
            preStop={"exec": {"command": ["sh", "-c", "/bin/sleep 15"]}}
        ),
        "grace",
        "error",
    ),
    "an image that aborts its requests": (
        "vllm-one-node",
        lambda files: engine(files).update(
            image="vllm/vllm-openai:v1", command=[], args=["--port=8000"]
        ),
        "drain",
        "warning",
    ),
    "a module that aborts its requests": (
        "vllm-one-node",
        lambda files: engine(files).update(
            command=["python3", "-m", "vllm.entrypoints.openai.api_server", "--port=8000"]
        ),
        "drain",
        "warning",
    ),
    "a picker without a token": (
        HERE,
        lambda files: pod(files, "gateway-").update(automountServiceAccountToken=False),
        "token",
        "error",
    ),
    "a service of a port without a name": (
        HERE,
        lambda files: files["service.yaml"]["spec"]["ports"][0].update(targetPort="api"),
        "port",
        "error",
    ),
    "a monitor of a port without a name": (
        HERE,
        lambda files: files["pod-monitor.yaml"]["spec"]["podMetricsEndpoints"][0].update(port="m"),
        "port",
        "error",
    ),
    "a monitor of other pods": (
        HERE,
        lambda files: files["pod-monitor.yaml"]["spec"].update(
            selector={"matchLabels": {"app": "vllm"}}
        ),
        "selector",
        "error",
    ),
    "a budget of other pods": (
        HERE,
        lambda files: files["disruption-budget.yaml"]["spec"]["selector"]["matchLabels"].update(
            {"app.kubernetes.io/component": "worker"}
        ),
        "selector",
        "error",
    ),
    "a policy of other pods": (
        HERE,
        lambda files: files["network-policy.yaml"]["spec"].update(
            podSelector={"matchLabels": {"app": "vllm"}}
        ),
        "selector",
        "error",
    ),
    "a pool of other pods": (
        HERE,
        lambda files: files["inference-pool.yaml"]["spec"]["selector"]["matchLabels"].update(
            {"app.kubernetes.io/component": "leader"}
        ),
        "selector",
        "error",
    ),
    "a budget that lets nothing go": (
        HERE,
        lambda files: files["disruption-budget.yaml"]["spec"].update(maxUnavailable=0),
        "budget",
        "error",
    ),
    "two numbers of replicas": (
        HERE,
        lambda files: files["deployment.yaml"]["spec"].update(replicas=2),
        "scaler",
        "error",
    ),
    "an autoscaler of nothing": (
        HERE,
        lambda files: scaler(files)["scaleTargetRef"].update(name="llama"),
        "scaler",
        "error",
    ),
    "an autoscaler by processor time": (
        HERE,
        lambda files: scaler(files)["metrics"].append(
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}
        ),
        "scaler",
        "warning",
    ),
    "a picker that is not there": (
        HERE,
        lambda files: files["inference-pool.yaml"]["spec"]["endpointPickerRef"].update(name="epp"),
        "picker",
        "error",
    ),
    "a picker at another port": (
        HERE,
        lambda files: files["inference-pool.yaml"]["spec"]["endpointPickerRef"].update(
            port={"number": 9003}
        ),
        "picker",
        "error",
    ),
    "a route to another pool": (
        HERE,
        lambda files: files["http-route.yaml"]["spec"]["rules"][0]["backendRefs"][0].update(
            name="llama"
        ),
        "route",
        "error",
    ),
    "a route that ends streams": (
        HERE,
        lambda files: files["http-route.yaml"]["spec"]["rules"][0].pop("timeouts"),
        "route",
        "warning",
    ),
    "a role that is not there": (
        HERE,
        lambda files: files["gateway-role-binding.yaml"]["roleRef"].update(name="view"),
        "binding",
        "error",
    ),
    "another account": (
        HERE,
        lambda files: files["gateway-role-binding.yaml"]["subjects"][0].update(name="default"),
        "binding",
        "error",
    ),
    "a volume of one node": (
        "sglang-two-nodes",
        lambda files: files["claim.yaml"]["spec"].update(accessModes=["ReadWriteOnce"]),
        "claim",
        "error",
    ),
    "one name twice": (
        HERE,
        lambda files: files.update({"again.yaml": files["service.yaml"]}),
        "twice",
        "error",
    ),
}


def pod(files: dict[str, Any], of: str = "") -> Any:
    return files[f"{of}deployment.yaml"]["spec"]["template"]["spec"]


def engine(files: dict[str, Any]) -> Any:
    return pod(files)["containers"][0]


def scaler(files: dict[str, Any]) -> Any:
    return files["horizontal-pod-autoscaler.yaml"]["spec"]


@pytest.mark.parametrize("name", TOGETHER)
def test_objects_that_do_not_belong_together_are_found(
    written: Written, tmp_path: Path, name: str
) -> None:
    kind, change, rule, severity = TOGETHER[name]
    files = copy.deepcopy(written(kind, *FRONT, "--autoscale-to", "9"))
    change(files)
    assert (rule, severity) in found(tmp_path, files)


def test_image_volumes(written: Written, tmp_path: Path) -> None:
    """Ours has a digest; without a reference an API server leaves it to others to fill in."""
    files = written(HERE, "--image-volume", f"registry/model@sha256:{64 * '0'}")
    assert not found(tmp_path, files)
    (volume,) = (each for each in pod(files)["volumes"] if "image" in each)
    for at, (reference, severity) in enumerate(
        (("", "error"), ("registry/model", "warning"), ("registry/model:latest", "warning"))
    ):
        volume["image"] = {"reference": reference} if reference else {}
        (tmp_path / str(at)).mkdir()
        assert found(tmp_path / str(at), files) == [("image-volume", severity)]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_found(written: Written, tmp_path: Path, name: str) -> None:
    files = copy.deepcopy(written("sglang-two-nodes"))
    change, rule, severity = MUTATIONS[name]
    change(files["leader-worker-set.yaml"], files["service.yaml"])
    assert (rule, severity) in found(tmp_path, files)


@pytest.mark.parametrize(
    ("config", "namespace", "wrong"),
    [
        ('{"configList": [{"resourceName": "rdma_shared_device_a"}]}', None, 0),
        ('{"configList": [{"resourceName": "rdma_shared_device_a"}]}', "nvidia", 1),
        ('{"configList": [}', None, 1),
        ('{"configList": []}', None, 1),
        ('{"configList": [{"rdmaHcaMax": 63}]}', "nvidia", 2),
        (None, None, 1),
    ],
)
def test_a_policy_that_the_api_server_does_not_look_into(
    tmp_path: Path, config: str | None, namespace: str | None, wrong: int
) -> None:
    metadata = {"name": "nic", **({"namespace": namespace} if namespace else {})}
    policy = {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": metadata,
        "spec": {"rdmaSharedDevicePlugin": {"config": config}},
    }
    assert found(tmp_path, {"policy.yaml": policy}) == [("network", "error")] * wrong


def rules(name: str) -> set[str]:
    return {finding.rule for _, finding in lint([PUBLISHED / name])}


def test_the_manifest_of_source_000() -> None:
    """A mount names a volume that is not there; no API server sees that in a LeaderWorkerSet."""
    assert rules("source-000.yaml") == {
        "device-nodes",
        "drain",
        "requests",
        "service-links",
        "spread",
        "volume",
    }


def test_the_manifest_of_source_002() -> None:
    assert rules("source-002.yaml") == {
        "device-nodes",
        "nccl",
        "open",
        "privileged",
        "probe-delay",
        "requests",
        "service-links",
        "worker-probe",
    }


def test_findings_are_printed_and_errors_are_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["deploy", "lint", str(PUBLISHED / "source-000.yaml")]) == 1
    printed = capsys.readouterr().out
    assert "LeaderWorkerSet qwq-dist-v1-distributed-serving: error: volumeMounts names" in printed
    assert printed.splitlines()[-1] == "2 errors, 8 warnings"


def test_lists_and_other_kinds_are_read(tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"image": "a"}]}}
    job = {"jobTemplate": {"spec": {"template": {"spec": pod["spec"]}}}}
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "spec": job}
    listed = {"apiVersion": "v1", "kind": "List", "items": [pod, cron]}
    assert found(tmp_path, {"list.yaml": listed}).count(("image", "warning")) == 2


@pytest.mark.parametrize("text", ["a: [", "a: 1\n", ""])
def test_files_without_objects_are_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(PenstockError):
        lint([path])


JUNK = [None, 1, "x", [], [1], {"a": []}]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob", *RULES])
def test_no_manifest_is_too_strange(tmp_path: Path, kind: str, junk: object) -> None:
    """Shapes that no API server would take give findings or none, never a traceback."""
    parts = ("containers", "volumes", "template", "leaderWorkerTemplate", "rules", "ports")
    parts += ("endpointPickerRef", "scaleTargetRef", "metrics", "accessModes", "podSelector")
    nested = dict.fromkeys(parts, junk)
    for spec in (junk, nested, {"template": {"spec": nested}, "selector": junk}):
        path = tmp_path / "x.yaml"
        path.write_text(yaml.safe_dump({"apiVersion": "v", "kind": kind, "spec": spec}))
        lint([path])
