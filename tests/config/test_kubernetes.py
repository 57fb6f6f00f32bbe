"""Access to an API server, from a kubeconfig and from inside a pod."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import cluster_access, default_kubeconfigs
from penstock.core import PenstockError

PLUGIN = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "sh",
    "interactiveMode": "Never",
    "installHint": "brew it",
}


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any], **more: object) -> Path:
    content: dict[str, object] = {
        "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "x", "user": "y"}},
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "models"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://a:6443", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(content | more))
    return file


def test_the_current_context_of_a_kubeconfig_counts(tmp_path: Path) -> None:
    pem = base64.b64encode(b"PEM").decode()
    cluster = {"certificate-authority-data": pem}
    user = {"client-certificate": "me.crt", "client-key-data": pem}
    access = cluster_access(written(tmp_path, cluster, user))
    assert access.namespace == "models"
    assert access.cluster == {
        "server": "https://a:6443",
        "authorities": {"text": "PEM"},
        "certificate": {"file": str(tmp_path / "me.crt")},
        "key": {"text": "PEM"},
    }
    files = {"certificate-authority": "/etc/ca.crt"}
    access = cluster_access(written(tmp_path, files, {"tokenFile": "token", "token": "old"}))
    assert access.cluster["authorities"] == {"file": "/etc/ca.crt"}
    assert access.cluster["token"] == {"file": str(tmp_path / "token")}
    access = cluster_access(written(tmp_path, {}, {"token": "t"}))
    assert access.cluster == {"server": "https://a:6443", "token": {"text": "t"}}


@pytest.mark.parametrize(
    ("cluster", "user", "more", "wanted"),
    [
        ({"server": "a:6443"}, {}, {}, "has to be a URL"),
        ({"insecure-skip-tls-verify": True}, {}, {}, "insecure-skip-tls-verify is not supported"),
        ({"certificate-authority-data": "?"}, {}, {}, "certificate-authority-data is no PEM"),
        ({}, {"auth-provider": {"name": "gcp"}}, {}, "auth-provider.*kubectl create token"),
        ({}, {"exec": {"command": "aws"}}, {}, "exec.apiVersion is None"),
        ({}, {"exec": {**PLUGIN, "interactiveMode": "Always"}}, {}, "terminal"),
        ({}, {"exec": {**PLUGIN, "command": "no-such"}}, {}, "'no-such' is no program: brew it"),
        ({}, {"username": "u", "password": "p"}, {}, "password"),
        ({}, {"client-certificate": "a"}, {}, "go together"),
        ({}, {}, {"current-context": ""}, "no current-context"),
        ({}, {}, {"current-context": "there"}, "clusters has no 'x'"),
        ({}, {}, {"users": None}, "users has no 'u'"),
    ],
)
def test_what_a_kubeconfig_lacks_is_named(
    tmp_path: Path,
    cluster: dict[str, Any],
    user: dict[str, Any],
    more: dict[str, object],
    wanted: str,
) -> None:
    with pytest.raises(PenstockError, match=wanted) as caught:
        cluster_access(written(tmp_path, cluster, user, **more))
    assert str(tmp_path) in str(caught.value)


def test_a_plugin_is_told_of_the_cluster_and_found_as_kubectl_does(tmp_path: Path) -> None:
    pem = base64.b64encode(b"PEM").decode()
    own = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    cluster = {"certificate-authority-data": pem, "extensions": [own]}
    env = [{"name": "REGION", "value": "eu"}]
    plugin = {**PLUGIN, "args": ["-c", "true"], "env": env, "provideClusterInfo": True}
    access = cluster_access(written(tmp_path, cluster, {"exec": plugin}))
    found: Any = access.cluster["exec"]
    assert found["program"] == shutil.which("sh")
    assert found["args"] == ["-c", "true"]
    assert found["api_version"] == PLUGIN["apiVersion"]
    info = json.loads(found["env"].pop("KUBERNETES_EXEC_INFO"))
    assert found["env"] == {"REGION": "eu"}
    about = {"server": "https://a:6443", "certificate-authority-data": pem}
    assert info == {
        "apiVersion": PLUGIN["apiVersion"],
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {**about, "config": {"audience": "a"}}},
    }
    beside = tmp_path / "login"
    beside.touch(0o755)
    access = cluster_access(written(tmp_path, {}, {"exec": {**PLUGIN, "command": "./login"}}))
    found = access.cluster["exec"]
    assert Path(found["program"]) == beside


def test_the_files_of_kubeconfig_are_one(tmp_path: Path) -> None:
    """The first file that says something counts; paths are relative to the file that has them."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    here = written(first, {}, {"tokenFile": "token"}, clusters=[], **{"current-context": None})
    there = written(second, {"certificate-authority": "ca"}, {"token": "other"})
    environ = {"KUBECONFIG": f"/nonexistent:{here}:{there}"}
    access = cluster_access(None, environ)
    assert access.cluster == {
        "server": "https://a:6443",
        "authorities": {"file": str(second / "ca")},
        "token": {"file": str(first / "token")},
    }
    assert default_kubeconfigs(environ) == (Path("/nonexistent"), here, there)
    assert default_kubeconfigs({"KUBECONFIG": ""}) == ()
    with pytest.raises(PenstockError, match="KUBECONFIG=/nonexistent: there is no such file"):
        cluster_access(None, {"KUBECONFIG": "/nonexistent"})


def test_a_pod_has_its_service_account(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(PenstockError, match="automountServiceAccountToken"):
        cluster_access(None, environ, tmp_path)
    for name, content in (("token", "t"), ("ca.crt", "PEM"), ("namespace", "models\n")):
        (tmp_path / name).write_text(content)
    access = cluster_access(None, environ, tmp_path)
    assert access.namespace == "models"
    assert access.cluster == {
        "server": "https://[fd00::1]:443",
        "authorities": {"file": str(tmp_path / "ca.crt")},
        "token": {"file": str(tmp_path / "token")},
    }


def test_outside_of_a_pod_a_kubeconfig_is_needed() -> None:
    with pytest.raises(PenstockError, match="--kubeconfig FILE"):
        cluster_access(None, {})
