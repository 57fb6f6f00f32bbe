"""apply, diff, status and delete against a pretended API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.cluster.conftest import deploy
from tests.deploy.cluster.fake import TOKEN, FakeServer

SPACE = "/api/v1/namespaces/models"
DEPLOYMENT = "/apis/apps/v1/namespaces/models/deployments/tiny"
JOB = "/apis/batch/v1/namespaces/models/jobs/tiny-pull"
CLAIM = f"{SPACE}/persistentvolumeclaims/tiny-model"
SERVING = {
    "observedGeneration": 1,
    "replicas": 2,
    "updatedReplicas": 2,
    "availableReplicas": 2,
}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}


def serve(fake: FakeServer) -> None:
    """What controllers would write."""
    fake.objects[DEPLOYMENT]["status"] = SERVING
    fake.objects[JOB]["status"] = COMPLETE


def test_apply_makes_the_claim_first_and_says_what_became_of_each(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy("apply", manifests, "--no-wait") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PersistentVolumeClaim tiny-model: created"
    assert lines[1] == "Service tiny: created"
    assert sorted(lines[2:]) == [
        "Deployment tiny: created",
        "Job tiny-pull: created",
        "NetworkPolicy tiny: created",
        "PodDisruptionBudget tiny: created",
    ]
    file = manifests / "service.yaml"
    file.write_text(file.read_text().replace('"port": 8000', "").replace("port: 8000", "port: 80"))
    assert deploy("apply", manifests, "--no-wait") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Service tiny: configured" in lines
    assert "Deployment tiny: unchanged" in lines


def test_apply_waits_until_all_is_ready(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy("apply", manifests, "--no-wait")
    serve(fake)
    capsys.readouterr()
    assert deploy("apply", manifests) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Deployment tiny: 2 of 2 ready",
        "Job tiny-pull: complete",
    ]


def test_apply_changes_nothing_where_one_object_is_refused(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    causes = [{"field": ".spec.replicas", "message": 'conflict with "hpa"'}]
    fake.refused[DEPLOYMENT] = (
        409,
        fake.failure(409, "Apply failed with 1 conflict", causes=causes),
    )
    assert deploy("apply", manifests) == 1
    assert not fake.objects
    said = capsys.readouterr().err
    assert "Deployment tiny: Apply failed with 1 conflict" in said
    assert '.spec.replicas: conflict with "hpa"' in said
    assert "--force-conflicts" in said


def test_a_kind_that_the_cluster_lacks_is_named_with_what_brings_it(
    fake: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    (tmp_path / "lws.yaml").write_text(yaml.safe_dump({**group, "metadata": {"name": "r1"}}))
    assert deploy("apply", tmp_path / "lws.yaml") == 1
    assert "it needs the LeaderWorkerSet controller" in capsys.readouterr().err
    assert deploy("delete", tmp_path / "lws.yaml") == 0
    assert capsys.readouterr().out == "LeaderWorkerSet r1: not there\n"


def test_diff_prints_what_would_change_and_changes_nothing(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy("diff", manifests) == 1
    assert "+++ applied: Deployment tiny" in capsys.readouterr().out
    assert not fake.objects
    deploy("apply", manifests, "--no-wait")
    capsys.readouterr()
    assert deploy("diff", manifests) == 0
    assert capsys.readouterr().out == ""
    file = manifests / "deployment.yaml"
    file.write_text(file.read_text().replace("replicas: 2", "replicas: 3"))
    assert deploy("diff", manifests) == 1
    changed = [line for line in capsys.readouterr().out.splitlines() if line[1:2] == " "]
    assert {line for line in changed if line[0] in "+-"} == {"-  replicas: 2", "+  replicas: 3"}


def test_delete_removes_what_the_directory_names_and_keeps_the_claim(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy("apply", manifests, "--no-wait")
    other = DEPLOYMENT.replace("tiny", "other")
    fake.objects[other] = {"metadata": {"name": "other", "uid": "1"}}
    capsys.readouterr()
    assert deploy("delete", manifests) == 0
    assert set(fake.objects) == {CLAIM, other}
    assert "PersistentVolumeClaim tiny-model: kept (--claims removes it)" in capsys.readouterr().out
    assert deploy("delete", manifests, "--claims") == 0
    assert set(fake.objects) == {other}
    assert "Deployment tiny: not there" in capsys.readouterr().out


def pod(name: str, labels: dict[str, str], **status: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "models",
        "uid": f"uid-{name}",
        "labels": labels,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    container = {"name": "engine", "image": "registry/engine"}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": status}


def test_status_names_the_first_cause_with_the_end_of_the_log(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy("apply", manifests, "--no-wait")
    fake.objects[JOB]["status"] = COMPLETE
    labels = fake.objects[DEPLOYMENT]["spec"]["template"]["metadata"]["labels"]
    ended = {"exitCode": 3, "reason": "Error", "startedAt": "2026-01-01T00:00:01Z"}
    status = {
        "name": "engine",
        "ready": False,
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    fake.objects[f"{SPACE}/pods/tiny-a"] = pod("tiny-a", labels, containerStatuses=[status])
    fake.logs[f"{SPACE}/pods/tiny-a"] = "reading\nerror: /models is empty\n"
    capsys.readouterr()
    assert deploy("status", manifests) == 1
    assert capsys.readouterr().out.splitlines() == [
        "Deployment tiny: 0 of 2 ready, 0 of the newest version",
        "Job tiny-pull: complete",
        "cause: pod tiny-a: container engine ended with exit status 3, 4 restarts",
        "  log: reading",
        "  log: error: /models is empty",
    ]


def test_status_of_what_was_never_applied(
    fake: FakeServer, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy("status", manifests) == 1
    assert "cause: Job tiny-pull: is not in the cluster" in capsys.readouterr().out


def test_a_wrong_token_is_the_server_s_own_answer(
    fake: FakeServer, manifests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace("let-me-in", "wrong"))
    assert deploy("status", manifests) == 1
    assert "Unauthorized" in capsys.readouterr().err


def test_a_command_that_logs_in_is_asked_again_and_named_where_it_fails(
    fake: FakeServer, manifests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokens expire at once: each request has a new one."""
    command = tmp_path / "login"
    file = tmp_path / "kubeconfig"
    version = "client.authentication.k8s.io/v1"
    content = yaml.safe_load(file.read_text())
    content["users"][0]["user"] = {"exec": {"apiVersion": version, "command": "./login"}}
    file.write_text(yaml.safe_dump(content))
    status = {"token": TOKEN, "expirationTimestamp": "2001-01-01T00:00:00Z"}
    issued = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    command.write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\necho '{issued}'\n")
    command.chmod(0o755)
    assert deploy("apply", manifests, "--no-wait") == 0
    assert (tmp_path / "asked").stat().st_size == len(fake.requests)
    command.write_text("#!/bin/sh\necho no session >&2; exit 3\n")
    assert deploy("status", manifests) == 1
    assert f"{command}: exit status: 3: no session" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named(
    tmp_path: Path, manifests: Path, fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace(fake.url, "http://127.0.0.1:9"))
    assert deploy("status", manifests) == 1
    assert "the API server does not answer" in capsys.readouterr().err


def test_a_missing_kubeconfig_is_named(
    manifests: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where kubectl is installed, which would try port 8080 of this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for kubectl in (False, True):
        if kubectl:
            (programs / "kubectl").write_text("#!/bin/sh\necho no such context >&2\nexit 1\n")
            (programs / "kubectl").chmod(0o755)
        assert deploy("diff", manifests) == 1
        assert "give --kubeconfig FILE, or set KUBECONFIG" in capsys.readouterr().err
        assert deploy("diff", manifests, "--kubeconfig", tmp_path / "none") == 1
        assert f"{tmp_path / 'none'}: No such file" in capsys.readouterr().err
    assert deploy("diff", manifests, "--context", "other") == 1
    assert "kubectl proxy: no such context" in capsys.readouterr().err
