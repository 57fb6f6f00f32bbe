"""From objects of the API to the first cause."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_ops.deploy.cluster.causes import Stage, causes
from penstock_ops.deploy.cluster.manifests import Reference
from penstock_ops.deploy.cluster.snapshot import Workload
from penstock_ops.deploy.cluster.status import report
from tests.deploy.cluster.made import (
    LABELS,
    at,
    container,
    crashed,
    ended,
    event,
    first,
    node,
    pod,
    running,
    snapshot,
    unscheduled,
    waiting,
    workload,
)


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("ErrImagePull", 'failed to resolve "x": manifest unknown: not found', "does not exist"),
        ("InvalidImageName", "couldn't parse image name: invalid reference", "does not exist"),
        ("ErrImagePull", "pull access denied, insufficient_scope", "no permission"),
        ("ErrImagePull", "unexpected status: 401 Unauthorized", "no permission"),
        ("ErrImageNeverPull", "Container image is not present with pull policy of Never", "never"),
        ("ErrImagePull", "dial tcp: lookup registry: no such host", "registry does not answer"),
        ("ErrImagePull", "x509: certificate signed by unknown authority", "is not trusted"),
        ("ErrImagePull", "write /var/lib: no space left on device", "does not fit"),
        ("ErrImagePull", "registry/engine:1: dial tcp 10.0.0.1:40300: timeout", "does not answer"),
    ],
)
def test_images(reason: str, message: str, words: str) -> None:
    words = "must not be pulled" if words == "never" else words
    found = first(pod(status={"containerStatuses": [waiting(reason, message)]}))
    assert found.stage is Stage.IMAGE
    assert words in found.summary
    assert "registry/engine:1" in found.summary
    assert found.details == (f"kubelet: {message}",)


def test_an_image_that_is_tried_again_keeps_the_error_of_the_last_attempt() -> None:
    waits = pod(status={"containerStatuses": [waiting("ImagePullBackOff", "Back-off pulling")]})
    failed = event(waits, "Failed", 'Failed to pull image "x": 403 Forbidden', 20)
    again = event(waits, "Failed", "Error: ErrImagePull", 20)
    assert "no permission" in first(waits, failed, again).summary


def test_an_image_volume_that_cannot_be_pulled() -> None:
    """The kubelet says it of the container, whose own image is there."""
    said = 'Back-off pulling image "registry/model:1": not found'
    status = waiting("ImagePullBackOff", said)
    volumes = [{"name": "model", "image": {"reference": "registry/model:1"}}]
    spec = {"containers": [container()], "volumes": volumes}
    found = first(pod(status={"containerStatuses": [status]}, spec=spec))
    assert found.stage == Stage.IMAGE
    assert found.summary.startswith("image registry/model:1 ")


@pytest.mark.parametrize(
    ("message", "words", "remedy"),
    [
        (
            'secret "tiny-cluster" not found',
            "the secret tiny-cluster is missing",
            "kubectl create secret generic tiny-cluster --from-literal token=...",
        ),
        (
            'configmap "tuning" not found',
            "the config map tuning is missing",
            "kubectl create configmap tuning --from-literal KEY=...",
        ),
        (
            "couldn't find key token in Secret models/hub",
            "the secret hub has no key token",
            "kubectl edit secret hub",
        ),
    ],
)
def test_missing_configuration(message: str, words: str, remedy: str) -> None:
    status = waiting("CreateContainerConfigError", message)
    source = {"secretKeyRef": {"name": "tiny-cluster", "key": "token"}}
    variables = [{"name": "PENSTOCK_CLUSTER_TOKEN", "valueFrom": source}]
    spec = {"containers": [container(env=variables)]}
    found = first(pod(status={"containerStatuses": [status]}, spec=spec))
    assert (found.stage, found.summary) == (Stage.CONFIG, words)
    assert found.remedy == remedy


def test_volumes_that_cannot_be_mounted() -> None:
    waits = pod(status={"containerStatuses": [waiting("ContainerCreating")]})
    said = 'MountVolume.SetUp failed for volume "v" : '
    found = first(waits, event(waits, "FailedMount", f'{said}secret "certs" not found'))
    assert (found.stage, found.summary) == (Stage.VOLUME, "the secret certs is missing")
    path = "hostPath type check failed: /srv/models is not a directory"
    found = first(waits, event(waits, "FailedMount", said + path))
    assert found.summary == "on node n1, /srv/models is not a directory"


def test_a_crash_loop_with_its_status_and_the_end_of_the_log() -> None:
    logs = {("tiny-a", "engine"): [f"line {n}" for n in range(20)]}
    found = first(crashed(ended(1)), logs=logs)
    assert (found.stage, found.summary) == (
        Stage.ENDED,
        "container engine ended with exit status 1, 3 restarts",
    )
    assert found.details[-1] == "log: line 19"
    assert len(found.details) == 8
    assert found.lasting


def test_a_container_killed_for_memory_with_its_limit() -> None:
    dead = crashed(ended(137, "OOMKilled"))
    dead["spec"]["containers"] = [container(resources={"limits": {"memory": "2Gi"}})]
    assert "killed for memory: its limit is 2Gi" in first(dead).summary


def test_signals_have_names() -> None:
    assert "was ended by SIGSEGV (exit status 139)" in first(crashed(ended(139))).summary


def test_an_init_container_comes_before_the_containers_that_wait_for_it() -> None:
    failed = {**waiting("CrashLoopBackOff", lastState=ended(2)), "name": "fetch"}
    status = {
        "initContainerStatuses": [failed],
        "containerStatuses": [waiting("PodInitializing")],
    }
    found = first(pod(status=status), logs={("tiny-a", "fetch"): ["no such model"]})
    assert found.stage is Stage.INIT
    assert found.summary == "init container fetch ended with exit status 2"
    assert found.details == ("log: no such model",)


def test_loading_within_its_time_is_progress_and_no_cause() -> None:
    loads = running(started=False, ago=30)
    seen = event(loads, "Unhealthy", "Startup probe failed: HTTP probe failed with statuscode: 503")
    found = snapshot(workload(loads), events=[seen])
    assert causes(found) == []
    assert report(found)[-1] == (
        "progress: pod tiny-a has been loading for 30 s (planned: up to 60 s; its startup probe "
        "gives it 120 s)"
    )


def test_a_startup_probe_that_ended_its_container_says_what_was_planned() -> None:
    again = running(started=False, ago=10, last=ended(137))
    killed = event(again, "Killing", "Container engine failed startup probe, will be restarted", 12)
    found = first(again, killed)
    assert found.stage is Stage.PROBE
    assert found.summary == (
        "container engine was ended by its startup probe, 1 restarts: not ready within 120 s "
        "(planned: 60 s)"
    )


def test_a_server_that_stopped_answering_says_since_when() -> None:
    stuck = running(started=True, ago=500)
    seen = event(stuck, "Unhealthy", "Readiness probe failed: Get http://10.0.0.1: refused")
    found = first(stuck, seen)
    assert found.summary == "container engine has failed its readiness probe for 40 s"
    assert found.details == ("readiness probe: Get http://10.0.0.1: refused",)


def test_a_server_that_has_not_been_asked_yet_is_no_cause() -> None:
    begins = running(started=True, ago=20)
    old = event(begins, "Unhealthy", "Readiness probe failed: statuscode: 503", 60)
    assert causes(snapshot(workload(begins), events=[old])) == []


def test_a_restart_is_not_blamed_on_a_probe_of_the_run_that_follows() -> None:
    killed = ended(137, finishedAt=at(20))
    again = running(started=True, ago=15, last=killed)
    probe = event(again, "Killing", "Container engine failed liveness probe", 3)
    assert first(again, probe).summary == (
        "container engine was ended by SIGKILL (exit status 137), 1 restarts"
    )


def test_a_server_that_stands_still_is_not_blamed_on_how_an_earlier_run_ended() -> None:
    killed = ended(137, finishedAt=at(600))
    stuck = running(started=True, ago=590, last=killed)
    seen = event(stuck, "Unhealthy", "Liveness probe failed: deadline exceeded")
    assert first(stuck, seen).summary == "container engine has failed its liveness probe for 40 s"


def test_a_restart_is_not_blamed_on_a_probe_of_an_earlier_run() -> None:
    again = running(started=False, ago=10, last=ended(1))
    killed = event(again, "Killing", "Container engine failed liveness probe", 300)
    assert first(again, killed).summary == "container engine ended with exit status 1, 1 restarts"


def member(index: int, **status: Any) -> dict[str, Any]:
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {**LABELS, f"{prefix}/group-index": "0", f"{prefix}/worker-index": str(index)}
    return pod(f"tiny-0-{index}", labels=labels, status=status)


def group(*pods: dict[str, Any]) -> Workload:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container()]}}
    spec = {
        "leaderWorkerTemplate": {"size": 2, "leaderTemplate": template, "workerTemplate": template}
    }
    manifest = {"kind": "LeaderWorkerSet", "metadata": {"name": "tiny"}, "spec": spec}
    return Workload(Reference(manifest, "models", "/apis"), {"metadata": {}, "spec": {}}, pods)


def test_a_lost_worker_comes_before_the_leader_s_probe() -> None:
    leader = running(started=True, ago=500)
    leader["metadata"] |= {"name": "tiny-0", "labels": member(0)["metadata"]["labels"]}
    leader["metadata"]["uid"] = "uid-leader"
    waits = event(leader, "Unhealthy", "Readiness probe failed: statuscode: 503")
    found = causes(snapshot(group(leader), events=[waits]))
    assert [cause.stage for cause in found] == [Stage.GROUP, Stage.PROBE]
    assert found[0].summary == "worker 1 of 2 pods is missing"
    assert found[0].subject == "group 0 of tiny"


def test_a_crashed_worker_comes_before_the_leader_that_waits() -> None:
    leader = running(started=True, ago=500)
    leader["metadata"] |= {"name": "tiny-0", "labels": member(0)["metadata"]["labels"]}
    worker = member(1, containerStatuses=[waiting("CrashLoopBackOff", lastState=ended(1))])
    found = causes(snapshot(group(leader, worker)))
    assert found[0].subject == "pod tiny-0-1"


def test_a_worker_with_another_token_by_the_leader_s_log() -> None:
    leader = running(started=False, ago=30)
    said = (
        "waiting for node 1 of 2 at 10.244.0.2:29501 (a caller from 10.244.0.4 was turned away: it "
        "has not the token of node 0): start there the same command with another --node-rank"
    )
    found = first(leader, logs={("tiny-a", "engine"): ["model read", said]})
    assert found.stage is Stage.GROUP
    assert found.summary == "waits for node 1: the pod at 10.244.0.4 has another token"


def test_a_node_that_stopped_reporting() -> None:
    quiet = {
        "type": "Ready",
        "status": "Unknown",
        "lastTransitionTime": at(90),
        "message": "Kubelet stopped posting node status.",
    }
    lost = node(status={"conditions": [quiet]})
    found = first(pod(status={"phase": "Running"}), nodes=[lost])
    assert (found.stage, found.subject, found.summary) == (
        Stage.NODE,
        "node n1",
        "is not ready for 90 s",
    )


def test_an_eviction_for_the_disk_comes_before_its_successor_that_finds_no_node() -> None:
    said = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi."
    gone = pod("tiny-old", status={"phase": "Failed", "reason": "Evicted", "message": said})
    full = node(
        spec={"taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]}
    )
    found = causes(snapshot(workload(gone, unscheduled("...")), nodes=[full]))
    assert [cause.stage for cause in found] == [Stage.NODE, Stage.NODE]
    assert found[0].summary == "was driven off n1, which has a full disk"


def test_a_silent_node_comes_before_what_was_driven_off_it_earlier() -> None:
    said = "Pod was rejected: The node had condition: [DiskPressure]. "
    gone = pod("tiny-a", status={"phase": "Failed", "reason": "Evicted", "message": said})
    missed = {"type": "Ready", "status": "Unknown", "lastTransitionTime": at(90)}
    silent = node(status={"conditions": [missed]})
    left = pod("tiny-b", status={"phase": "Running", "conditions": []})
    found = causes(snapshot(workload(gone, left), nodes=[silent]))
    assert [cause.subject for cause in found] == ["node n1", "pod tiny-a"]
    assert found[0].summary == "is not ready for 90 s"


def test_a_quota_says_what_was_asked_and_used() -> None:
    said = (
        'pods "tiny-a" is forbidden: exceeded quota: team, requested: limits.memory=16Gi, '
        "used: limits.memory=8Gi, limited: limits.memory=20Gi"
    )
    failure = {"type": "ReplicaFailure", "status": "True", "message": said}
    live = {"metadata": {}, "spec": {}, "status": {"conditions": [failure]}}
    (found,) = causes(snapshot(workload(live=live)))
    assert (found.stage, found.subject) == (Stage.FORBIDDEN, "Deployment tiny")
    assert found.summary == (
        "the quota team allows no more pods: asked for limits.memory=16Gi, used limits.memory=8Gi "
        "of limits.memory=20Gi"
    )


def test_pods_that_the_namespace_forbids_by_an_event() -> None:
    said = 'pods "tiny-a" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'
    live = {"metadata": {"name": "tiny", "uid": "1"}, "spec": {}}
    refused = event({"metadata": {"name": "tiny-7c9f"}}, "FailedCreate", said)
    (found,) = causes(snapshot(workload(live=live), events=[refused]))
    assert found.summary == "the namespace forbids its pods"


def test_a_failing_pull_comes_before_servers_that_have_no_model() -> None:
    dead = crashed(ended(1))
    puller = pod(
        "tiny-pull-x",
        status={"containerStatuses": [waiting("CrashLoopBackOff", lastState=ended(1))]},
    )
    found = causes(snapshot(workload(dead), workload(puller, kind="Job")))
    assert [cause.subject for cause in found] == ["pod tiny-pull-x", "pod tiny-a"]


def test_servers_that_wait_for_a_pull_have_no_cause() -> None:
    puller = pod("tiny-pull-x", status={"phase": "Running"})
    assert causes(snapshot(workload(crashed(ended(1))), workload(puller, kind="Job"))) == []


def test_a_claim_without_a_volume_names_its_class() -> None:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "20Gi"}},
    }
    live = {"metadata": {"name": "tiny", "uid": "1"}, "spec": spec, "status": {"phase": "Pending"}}
    said = event(live, "ProvisioningFailed", 'storageclass "fast" not found')
    (found,) = causes(snapshot(workload(kind="PersistentVolumeClaim", live=live), events=[said]))
    assert found.summary == "no volume of 20Gi (ReadWriteMany) for it in storage class fast"
    assert causes(snapshot(workload(kind="PersistentVolumeClaim", live=live))) == []


def test_what_is_ready_has_no_cause() -> None:
    done = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    live = {"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": done}
    found = snapshot(workload(crashed(ended(1)), live=live))
    assert causes(found) == []
    assert report(found) == ["Deployment tiny: 1 of 1 ready"]
