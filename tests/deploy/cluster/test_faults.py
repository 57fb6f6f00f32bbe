"""Faults of pods on a real node, each named by `penstock deploy status`."""

from __future__ import annotations

import signal

import pytest

from tests.deploy.cluster.node import NODE
from tests.deploy.cluster.pods import Deployed
from tests.deploy.cluster.registry import PRIVATE, Registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_a_missing_model_with_the_path_from_the_log(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.write()
    deployed.edit("deployment.yaml", ".gguf", ".missing")
    assert deployed.run("apply") == 1
    said = capsys.readouterr().out
    assert "container engine ended with exit status 1" in said
    assert "log: penstock: error: " in said
    assert ".missing" in said.partition("log: ")[2]


def test_a_directory_that_the_node_lacks(deployed: Deployed) -> None:
    deployed.write("--host-path", "/srv/no-models")
    deployed.run("apply", "--no-wait")
    deployed.cause(f"on node {NODE}, /srv/no-models is not a directory")


def test_an_image_that_does_not_exist_or_may_not_be_pulled(deployed: Deployed) -> None:
    with Registry(deployed.node.place.host) as registry:
        deployed.node.trust(registry.name)
        image = f"{registry.name}/engine:1"
        deployed.write("--image", image)
        deployed.run("apply", "--no-wait")
        deployed.cause(f"image {image} does not exist")
        secret = f"{registry.name}/{PRIVATE}/engine:1"
        deployed.edit("deployment.yaml", image, secret)
        deployed.run("apply", "--no-wait")
        deployed.cause(f"image {secret} may not be pulled: no permission")


def test_what_is_short_on_the_node(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    deployed.write()
    deployed.edit("deployment.yaml", 'cpu: "50m"', 'cpu: "64"')
    assert deployed.run("apply", "--timeout", "5") == 1
    said = capsys.readouterr().out
    assert "not ready within 5 s" in said
    assert f"needs 64, and {NODE} has" in said
    assert "Insufficient cpu" in said


def test_a_missing_secret_and_a_missing_claim(deployed: Deployed) -> None:
    deployed.write("--api-key-secret", "keys")
    deployed.run("apply", "--no-wait")
    deployed.cause("the secret keys is missing")
    secrets = f"/api/v1/namespaces/{deployed.namespace}/secrets"
    body = {"metadata": {"name": "keys"}, "stringData": {"other": "x"}}
    deployed.node.call("POST", secrets, body)
    deployed.cause("the secret keys has no key api-key")


def test_a_claim_that_does_not_exist(deployed: Deployed) -> None:
    deployed.write("--claim", "weights", "--host-path", "")
    deployed.run("apply", "--no-wait")
    deployed.cause("the claim weights does not exist")


def test_a_quota(deployed: Deployed) -> None:
    space = f"/api/v1/namespaces/{deployed.namespace}"
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"limits.memory": "1Mi"}}}
    deployed.node.call("POST", f"{space}/resourcequotas", quota)
    deployed.write()
    deployed.run("apply", "--no-wait")
    deployed.cause("the quota team allows no more pods: asked for limits.memory=")


def test_a_memory_limit(deployed: Deployed) -> None:
    deployed.write()
    deployed.edit("deployment.yaml", "1024Mi", "48Mi")
    deployed.run("apply", "--no-wait")
    deployed.cause("was killed for memory: its limit is 48Mi")


def test_a_killed_server_and_one_that_stands_still(deployed: Deployed) -> None:
    deployed.write()
    assert deployed.run("apply") == 0
    deployed.signal(signal.SIGKILL)
    deployed.cause("container engine was ended by SIGKILL (exit status 137), 1 restarts")
    assert deployed.run("apply") == 0
    deployed.signal(signal.SIGSTOP)
    deployed.cause("container engine has failed its ")
    deployed.cause("container engine was ended by its liveness probe, 2 restarts")
    assert deployed.run("apply") == 0
    assert deployed.complete(deployed.url()).startswith(" Paris")


def test_a_full_disk_and_a_node_that_is_silent(deployed: Deployed) -> None:
    deployed.write()
    assert deployed.run("apply") == 0
    with deployed.node.full_disk():
        deployed.cause("has a full disk")
    assert deployed.run("apply") == 0
    with deployed.node.silent():
        deployed.cause(f"node {NODE}: is not ready for")
    assert deployed.run("apply") == 0
