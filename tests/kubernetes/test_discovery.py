"""A gateway and a real API server: etcd and kube-apiserver, pods whose status the tests write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.gateway import Gateway
from tests.e2e.pods import hosts, inference_pool, objective, priority_of_batch, replicas, rewrite
from tests.e2e.server import eventually
from tests.e2e.test_gateway_reload import Load
from tests.kubernetes.bed import EXPERIMENTAL, Bed

# The first run builds the API server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

LLAMA = {"app": "llama", "tier": "a"}
NAMESPACE = "models"
POOLS = f"/apis/inference.networking.k8s.io/v1/namespaces/{NAMESPACE}/inferencepools"
OLD = f"/apis/{EXPERIMENTAL}/v1alpha2/namespaces/{NAMESPACE}"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


@pytest.fixture
def bed(tmp_path: Path, repository: Path) -> Iterator[Bed]:
    """A cluster with the kinds, a namespace, and the gateway's rights in it."""
    with Bed(tmp_path) as made:
        made.define_kinds()
        made.namespace(NAMESPACE)
        manifest = repository / "deploy/kubernetes-gateway.yaml"
        for one in yaml.safe_load_all(manifest.read_text()):
            for subject in one.get("subjects", []):
                subject["namespace"] = NAMESPACE
            made.call("POST", PATHS[one["kind"]].format(NAMESPACE), one)
        yield made


def service_account(bed: Bed) -> Path:
    """A kubeconfig with a token of the gateway's service account."""
    path = f"{PATHS['ServiceAccount'].format(NAMESPACE)}/penstock-gateway/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    (bed.folder / "token").write_text(bed.call("POST", path, request)["status"]["token"])
    return bed.kubeconfig("account.yaml", {"tokenFile": "token"}, NAMESPACE)


def test_a_gateway_follows_a_real_api_server(bed: Bed, tmp_path: Path) -> None:
    kubeconfig = str(service_account(bed))
    with replicas(3) as port:
        bed.call("POST", POOLS, inference_pool(port))
        bed.pod(NAMESPACE, "a", LLAMA, "127.0.0.1")
        flags = ("--inference-pool", "llama", "--kubeconfig", kubeconfig, "--explain")
        with Gateway(*flags) as gateway, Load(gateway, 3) as load:

            def has(*wanted: int) -> None:
                eventually(lambda: hosts(gateway, tmp_path) == list(wanted), f"{wanted}")
                load.more(5)

            has(1)
            bed.pod(NAMESPACE, "b", LLAMA, "127.0.0.2")
            bed.pod(NAMESPACE, "c", LLAMA, "127.0.0.3")
            has(1, 2, 3)
            bed.delete_pod(NAMESPACE, "a", grace=30)
            has(2, 3)
            bed.delete_pod(NAMESPACE, "a")
            bed.set_ready(NAMESPACE, "b", False)
            has(3)
            # The API server is away, and what changes meanwhile counts afterwards.
            bed.kill_server()
            load.more(20)
            bed.start_server()
            bed.set_ready(NAMESPACE, "b", True)
            has(2, 3)
            # It has forgotten the version that the gateway knows.
            bed.pod(NAMESPACE, "d", LLAMA, "127.0.0.1")
            bed.forget_the_past()
            has(1, 2, 3)
            # It is stuck for a while.
            bed.freeze_server()
            load.more(20)
            bed.thaw_server()
            bed.delete_pod(NAMESPACE, "d")
            has(2, 3)
            # Another selector.
            other = {"spec": {"selector": {"matchLabels": {"tier": "b"}}}}
            bed.patch(
                f"/api/v1/namespaces/{NAMESPACE}/pods/b", {"metadata": {"labels": {"tier": "b"}}}
            )
            bed.patch(f"{POOLS}/llama", other)
            has(2)

            bed.call("POST", f"{OLD}/inferenceobjectives", objective(-3))
            eventually(lambda: priority_of_batch(gateway, tmp_path) == -3, "the objective")
            bed.call("POST", f"{OLD}/inferencemodelrewrites", rewrite("chat", "sim"))
            body = {"model": "chat", "prompt": "t1", "max_tokens": 1}
            with gateway.client() as client:
                eventually(
                    lambda: client.post("/v1/completions", json=body).is_success, "the rewrite"
                )
        assert set(load.statuses) == {200}
        forbidden = [line for line in gateway.log if ": 403: " in line]
        assert not forbidden, "the published rights are enough"


def test_a_pool_of_the_old_version_and_a_client_certificate(bed: Bed, tmp_path: Path) -> None:
    request = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", "me.key", "-out", "me.crt")
    bed.openssl(*request, "-subj", "/O=system:masters/CN=me", *signed)
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    kubeconfig = bed.kubeconfig("certificate.yaml", user, NAMESPACE)
    with replicas(1) as port:
        spec = {"selector": {"app": "llama"}, "targetPortNumber": port}
        old = {"apiVersion": f"{EXPERIMENTAL}/v1alpha2", "kind": "InferencePool", "spec": spec}
        bed.call("POST", f"{OLD}/inferencepools", {**old, "metadata": {"name": "llama"}})
        bed.pod(NAMESPACE, "a", LLAMA, "127.0.0.1")
        flags = ("--inference-pool", "llama", "--kubeconfig", str(kubeconfig), "--explain")
        with Gateway(*flags) as gateway:
            eventually(lambda: hosts(gateway, tmp_path) == [1], "the pod")


def test_files_of_the_environment_and_a_command_that_prints_tokens(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBECONFIG names two files, of which the second has the user: a command. What it prints is
    refused at first, then expires, and the command is asked again each time.
    """
    service_account(bed)
    good = (bed.folder / "token").read_text()
    said, asked = bed.folder / "said", bed.folder / "asked"
    said.write_text("stale")
    command = bed.folder / "login"
    command.write_text(
        f"""#!{sys.executable}
import datetime, json, pathlib
with open({str(asked)!r}, "a") as asked: asked.write("x")
now = datetime.datetime.now(datetime.timezone.utc)
until = (now + datetime.timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
token = pathlib.Path({str(said)!r}).read_text()
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                  "status": {{"token": token, "expirationTimestamp": until}}}}))
"""
    )
    command.chmod(0o755)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(command),
        "interactiveMode": "Never",
    }
    whole = bed.kubeconfig("whole.yaml", {"exec": plugin}, NAMESPACE)
    content = yaml.safe_load(whole.read_text())
    users = {"apiVersion": "v1", "kind": "Config", "users": content.pop("users")}
    (bed.folder / "users.yaml").write_text(yaml.safe_dump(users))
    whole.write_text(yaml.safe_dump(content))
    monkeypatch.setenv("KUBECONFIG", f"{whole}:{bed.folder / 'users.yaml'}")
    with replicas(2) as port:
        bed.call("POST", POOLS, inference_pool(port))
        bed.pod(NAMESPACE, "a", LLAMA, "127.0.0.1")
        with Gateway("--inference-pool", "llama", "--explain") as gateway:
            text = "401: Unauthorized"
            eventually(lambda: text in "\n".join(gateway.log), "the refusal")
            said.write_text(good)
            eventually(lambda: hosts(gateway, tmp_path) == [1], "the pod")
            # The watches begin anew with other tokens.
            before = len(asked.read_text())
            bed.kill_server()
            bed.start_server()
            bed.pod(NAMESPACE, "b", LLAMA, "127.0.0.2")
            eventually(lambda: hosts(gateway, tmp_path) == [1, 2], "both pods")
            assert len(asked.read_text()) > before


def test_what_is_refused_is_said(bed: Bed) -> None:
    (bed.folder / "token").write_text("stale")
    kubeconfig = bed.kubeconfig("stale.yaml", {"tokenFile": "token"}, NAMESPACE)
    with Gateway("--inference-pool", "llama", "--kubeconfig", str(kubeconfig)) as gateway:
        text = "401: Unauthorized"
        eventually(lambda: text in "\n".join(gateway.log), "the refusal")
        with gateway.client() as client:
            assert client.get("/ready").status_code == httpx.codes.SERVICE_UNAVAILABLE
