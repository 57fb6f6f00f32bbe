"""Volumes of pods: claims of all pods or of each, NFS, directories of nodes, and downloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.deploy.kinds.weights import DOWNLOAD, WAIT
from penstock_ops.deploy.lint import lint
from tests.deploy.conftest import HERE, TIER, Written, of_this_machine
from tests.e2e.server import eventually
from tests.limits import HANG

GROUP = "vllm-two-nodes"
HUB = """\
import pathlib, sys, time
def pull(name, _, directory):
    directory.mkdir(exist_ok=True)
    (directory / 'part').write_text(name)
    if sys.argv[-1].endswith('slow'):
        time.sleep(600)
    (directory / 'weights').write_text(name)
    return directory
"""
"""A hub whose download does not end in a directory of this name."""


def pod_of(files: dict[str, Any]) -> dict[str, Any]:
    """The pod that serves."""
    if "leader-worker-set.yaml" in files:
        group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
        template = group["leaderTemplate"]
    else:
        workload = files.get("deployment.yaml") or files["stateful-set.yaml"]
        template = workload["spec"]["template"]
    spec: dict[str, Any] = template["spec"]
    return spec


def volume(pod: dict[str, Any], name: str) -> dict[str, Any]:
    found = [each for each in pod["volumes"] if each["name"] == name]
    return found[0] if found else {}


@pytest.mark.parametrize(
    ("kind", "file"), [(HERE, "stateful-set.yaml"), (GROUP, "leader-worker-set.yaml")]
)
def test_each_pod_has_a_claim_that_it_fills_and_that_outlives_it(
    written: Written, tmp_path: Path, kind: str, file: str
) -> None:
    words = ("--pull", "org/name", "--claim-per-pod", "--storage-class", "fast")
    files = written(kind, *words)
    assert not {"claim.yaml", "pull-job.yaml", "deployment.yaml"} & files.keys()
    spec = files[file]["spec"]
    owner = spec.get("leaderWorkerTemplate", spec)
    (template,) = owner["volumeClaimTemplates"]
    assert template["metadata"] == {"name": "model"}
    assert template["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert template["spec"]["storageClassName"] == "fast"
    kept = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert owner["persistentVolumeClaimRetentionPolicy"] == kept
    pod = pod_of(files)
    assert not volume(pod, "model"), "the template is the volume"
    (pull,) = pod["initContainers"]
    assert pull["command"][-2:] == ["org/name", "/models"]
    assert "HF_TOKEN" in {entry["name"] for entry in pull["env"]}
    assert not lint([tmp_path / "manifests"])


def test_a_claim_may_go_with_its_pod(written: Written, tmp_path: Path) -> None:
    """What a LeaderWorkerSet before 0.8, or a RayCluster, can have."""
    files = written(GROUP, "--pull", "org/name", "--claim-per-pod", "ephemeral")
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    assert "volumeClaimTemplates" not in group
    template = volume(pod_of(files), "model")["ephemeral"]["volumeClaimTemplate"]
    assert template["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert not lint([tmp_path / "manifests"])


def test_the_autoscaler_scales_the_stateful_set(written: Written) -> None:
    files = written(HERE, "--pull", "org/name", "--claim-per-pod", "--autoscale-to", "4")
    target = files["horizontal-pod-autoscaler.yaml"]["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == ("apps/v1", "StatefulSet")


@pytest.mark.parametrize(("words", "mode"), [((), "ReadOnlyMany"), (("--pull", "o/n"), "RWX")])
def test_nfs_is_a_volume_with_mount_options(
    written: Written, tmp_path: Path, words: tuple[str, ...], mode: str
) -> None:
    rdma = "nfsvers=3,proto=rdma,port=20049,nconnect=8"
    nfs = ("--nfs", "[fd00::1]:/models", "--mount-options", rdma)
    files = written(HERE, *nfs, *words)
    spec = files["volume.yaml"]["spec"]
    mode = {"RWX": "ReadWriteMany"}.get(mode, mode)
    assert spec["nfs"] == {"server": "fd00::1", "path": "/models"}
    assert spec["mountOptions"] == rdma.split(",")
    assert (spec["accessModes"], spec["persistentVolumeReclaimPolicy"]) == ([mode], "Retain")
    claim = files["claim.yaml"]
    assert claim["spec"]["volumeName"] == files["volume.yaml"]["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == spec["storageClassName"] == ""
    assert claim["spec"]["accessModes"] == spec["accessModes"]
    storage = claim["spec"]["resources"]["requests"]["storage"]
    assert storage == spec["capacity"]["storage"], "else the claim does not match"
    mounted = volume(pod_of(files), "model")["persistentVolumeClaim"]["claimName"]
    assert mounted == claim["metadata"]["name"]
    assert ("pull-job.yaml" in files) == bool(words)
    assert not lint([tmp_path / "manifests"])


EPHEMERAL = {
    "volumeClaimTemplate": {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "36864Mi"}},
        }
    }
}


@pytest.mark.parametrize(
    ("place", "source", "size"),
    [
        ("emptydir", {"emptyDir": {"sizeLimit": "36864Mi"}}, ""),
        ("claim", {"persistentVolumeClaim": {"claimName": "big-kv"}}, "73728Mi"),
        ("claim:cache", {"persistentVolumeClaim": {"claimName": "cache"}}, ""),
        ("nfs:nas:/kv", {"persistentVolumeClaim": {"claimName": "big-kv"}}, "73728Mi"),
        ("hostpath:/mnt/nvme", {"hostPath": {"path": "/mnt/nvme", "type": "Directory"}}, ""),
        ("claim-per-pod", {}, ""),
        ("claim-per-pod:ephemeral", {"ephemeral": EPHEMERAL}, ""),
    ],
)
def test_a_disk_tier_is_on_each_kind_of_volume(
    written: Written, tmp_path: Path, place: str, source: dict[str, Any], size: str
) -> None:
    """In a group of two: what a pod has alone is half of the tier, what all share is the whole."""
    files = written("penstock-two-nodes", "--name", "big", *TIER, "--kv-volume", place)
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        pod = group[part]["spec"]
        assert volume(pod, "kv") == ({"name": "kv", **source} if source else {})
        (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "kv")
        assert mount == {"name": "kv", "mountPath": "/var/kv"}
    if size:
        spec = files["kv-claim.yaml"]["spec"]
        assert spec["resources"]["requests"]["storage"] == size
        assert spec["accessModes"] == ["ReadWriteMany"]
    if place == "claim-per-pod":
        (template,) = group["volumeClaimTemplates"]
        assert template["spec"]["resources"]["requests"]["storage"] == "36864Mi"
    if place.startswith("nfs"):
        assert "hard" in files["kv-volume.yaml"]["spec"]["mountOptions"]
    assert not lint([tmp_path / "manifests"])


def test_gpudirect_storage_sees_the_disks_of_the_node(written: Written, tmp_path: Path) -> None:
    words = ("--kv-tier", "disk:/var/kv,64GiB,gds=true", "--kv-volume", "hostpath:/mnt/nvme")
    pod = pod_of(written("penstock-two-nodes", *words))
    assert volume(pod, "udev")["hostPath"] == {"path": "/run/udev", "type": "Directory"}
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "udev")
    assert mount == {"name": "udev", "mountPath": "/run/udev", "readOnly": True}
    assert not lint([tmp_path / "manifests"])


REFUSED = [
    (GROUP, ["--claim", "ib-nas01", "--access-mode", "RWO"], "--claim-per-pod"),
    (HERE, ["--claim", "c", "--access-mode", "RWO"], "2 pods may be on several"),
    (HERE, ["--pull", "o/n", "--access-mode", "RWO", "--replicas", "1"], "and the Job that fills"),
    (HERE, ["--pull", "o/n", "--access-mode", "ROX"], "cannot write to this claim"),
    (HERE, ["--claim", "c", "--claim-per-pod"], "by --pull ORG/NAME"),
    (HERE, ["--pull", "o/n", "--claim-per-pod", "--access-mode", "RWX"], "one pod mounts"),
    (HERE, ["--nfs", "nas/path"], "SERVER:/PATH"),
    (HERE, ["--nfs", "nas:/p", "--claim", "c"], "give one of"),
    (HERE, ["--claim", "c", "--mount-options", "hard"], "--mount-options are of NFS"),
    (HERE, ["--claim", "c", "--kv-volume", "claim"], "--kv-tier disk:PATH,SIZE"),
    (HERE, ["--claim", "c", *TIER, "--kv-volume", "tape:1"], "hostpath:/DIR"),
    (HERE, ["--claim", "c", *TIER, "--kv-volume", "hostpath:mnt"], "hostpath:/DIR"),
    (
        HERE,
        ["--claim", "c", *TIER, "--kv-volume", "nfs:nas:/kv", "--mount-options", "soft"],
        "damaged file",
    ),
    (HERE, ["--pull", "o/n", "--pull-timeout", "0"], "at least 1"),
    (HERE, ["--claim", "c", "--pull-timeout", "9"], "is of --pull"),
    (HERE, ["--claim", "c", *TIER, "--kv-storage-class", "fast"], "--kv-volume makes"),
]


@pytest.mark.parametrize(("kind", "words", "why"), REFUSED)
def test_what_pods_cannot_mount_is_refused_with_its_remedy(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    words: list[str],
    why: str,
) -> None:
    out = tmp_path / "manifests"
    asked = ["deploy", "k8s", str(plan(kind)), "-o", str(out), "--image", "i", *words]
    assert main(asked) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert why in line
    assert not out.exists()


def test_one_pod_may_mount_a_claim_of_one_node(written: Written) -> None:
    assert written(HERE, "--claim", "c", "--access-mode", "RWO", "--replicas", "1")


def test_a_ray_cluster_keeps_no_claims(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["deploy", "ray", str(plan(HERE)), "-o", str(tmp_path / "out"), "--image", "i"]
    assert main([*asked, "--pull", "o/n", "--claim-per-pod"]) == 1
    assert "--claim-per-pod ephemeral" in capsys.readouterr().err
    assert main([*asked, "--pull", "o/n", "--claim-per-pod", "ephemeral"]) == 0


def program(text: str, folder: Path, *words: str) -> list[str]:
    """A program of the pods with this machine's directories, and with a hub that is a file."""
    return [sys.executable, "-c", text.replace("/models/.kernels", str(folder / "k")), *words]


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """Environment in which `penstock.hub` is HUB."""
    package = tmp_path / "site/penstock"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "hub.py").write_text(HUB)
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")}


def test_a_download_that_is_killed_leaves_no_marker_and_the_next_one_does(
    tmp_path: Path, hub: dict[str, str]
) -> None:
    """Pods begin when the marker names their model: not before, and not for another model."""
    slow, model = tmp_path / "slow", "org/name"
    marker = slow / ".pulled"
    killed = subprocess.Popen(program(DOWNLOAD, tmp_path, model, str(slow)), env=hub)
    eventually((slow / "part").exists, "the download")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not marker.exists()
    late = [*program(WAIT, tmp_path, model, str(slow), "0", "tiny-pull")]
    done = subprocess.run(late, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "kubectl logs job/tiny-pull" in done.stderr
    wait = program(WAIT, tmp_path, model, str(slow), str(round(HANG)), "tiny-pull")
    waiting = subprocess.Popen(wait, stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    assert b"waiting for Job tiny-pull" in waiting.stdout.readline()
    again = tmp_path / "again"
    subprocess.run(program(DOWNLOAD, tmp_path, model, str(again)), env=hub, check=True)
    assert (again / ".pulled").read_text() == model
    (again / ".pulled").rename(marker)
    assert waiting.wait(HANG) == 0
    waiting.stdout.close()
    (slow / "part").unlink()
    subprocess.run(program(DOWNLOAD, tmp_path, model, str(slow)), env=hub, check=True)
    assert not (slow / "part").exists(), "it is not downloaded again"
    other = program(DOWNLOAD, tmp_path, "org/other", str(again))
    subprocess.run(other, env=hub, check=True)
    assert (again / ".pulled").read_text() == "org/other"
    assert (again / "weights").read_text() == "org/other"


def test_pods_wait_for_the_job_as_long_as_a_slow_download_takes(written: Written) -> None:
    files = written(HERE, "--pull", "org/name", "--name", "tiny")
    (wait,) = pod_of(files)["initContainers"]
    model, _, limit, job = wait["command"][-4:]
    weights = of_this_machine()["memory"][0]["weights"]
    assert int(limit) == 600 + weights // 50_000_000
    assert (model, job) == ("org/name", files["pull-job.yaml"]["metadata"]["name"])
    assert wait["volumeMounts"] == [{"name": "model", "mountPath": "/models", "readOnly": True}]
    assert "env" not in wait, "the hub's token is the Job's alone"
    deadline = files["deployment.yaml"]["spec"]["progressDeadlineSeconds"]
    assert deadline >= int(limit) + 600
    given = pod_of(written(HERE, "--pull", "org/name", "--pull-timeout", "7"))
    assert given["initContainers"][0]["command"][-2] == "7"


def changed(files: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Rules and severities of the findings about changed manifests."""
    folder.mkdir(exist_ok=True)
    for name, manifest in files.items():
        (folder / name).write_text(yaml.safe_dump(manifest))
    return [(finding.rule, finding.severity) for _, finding in lint([folder])]


def test_lint_names_volumes_that_do_not_do(written: Written, tmp_path: Path) -> None:
    other = tmp_path / "other"
    files = written(HERE, "--pull", "org/name", "--replicas", "1")
    assert not changed(files, other)
    files["claim.yaml"]["spec"]["accessModes"] = ["ReadWriteOnce"]
    assert changed(files, other) == [("claim", "error")]
    files["deployment.yaml"]["spec"]["replicas"] = 2
    assert changed(files, other) == [("claim", "error")]
    files["claim.yaml"]["spec"]["accessModes"] = ["ReadOnlyMany"]
    assert changed(files, other) == [("claim", "error")]
    files["claim.yaml"]["spec"]["accessModes"] = ["ReadWriteMany"]
    del files["deployment.yaml"]["spec"]["template"]["spec"]["initContainers"]
    assert changed(files, other) == [("wait", "warning")]


def test_lint_names_directories_that_cannot_be_written(written: Written, tmp_path: Path) -> None:
    words = ("--kv-tier", "disk:/var/kv,1GiB,gds=true", "--kv-volume", "hostpath:/mnt/kv")
    files = written("penstock-two-nodes", *words)
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    pod = group["leaderTemplate"]["spec"]
    volume(pod, "kv")["hostPath"]["type"] = "DirectoryOrCreate"
    mounts = pod["containers"][0]["volumeMounts"]
    pod["containers"][0]["volumeMounts"] = [m for m in mounts if m["name"] != "udev"]
    found = changed(files, tmp_path / "other")
    assert sorted(found) == [("gds", "warning"), ("host-path", "error")]
    files = written(HERE, *TIER, "--kv-volume", "nfs:nas:/kv")
    files["kv-volume.yaml"]["spec"]["mountOptions"] = ["soft"]
    assert ("nfs", "error") in changed(files, tmp_path / "third")
