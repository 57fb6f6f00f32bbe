"""A replica of two pods on a real node: it serves, and what is wrong with one of them is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.cluster.groups import StandIn
from tests.deploy.cluster.node import Node
from tests.deploy.cluster.pods import Deployed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def controller(node: Node) -> Iterator[StandIn]:
    with StandIn(node) as made:
        yield made


def token(deployed: Deployed, text: str) -> None:
    """The secret by which the pods of a group know each other."""
    secrets = f"/api/v1/namespaces/{deployed.namespace}/secrets"
    body = {"metadata": {"name": "tiny-cluster"}, "stringData": {"token": text}}
    deployed.node.call("POST", secrets, body)


def test_a_group_serves_and_names_a_worker_that_is_missing_or_has_another_token(
    deployed: Deployed, controller: StandIn
) -> None:
    deployed.write(pipeline_parallel_size=2)
    assert deployed.run("apply", "--no-wait") == 0
    found = deployed.cause("pod tiny-0: the secret tiny-cluster is missing")
    assert "kubectl create secret generic tiny-cluster" in found
    token(deployed, "a" * 64)
    assert deployed.run("apply") == 0
    assert deployed.complete(deployed.url()).startswith(" Paris")

    controller.paused = True
    deployed.node.delete_pod(deployed.namespace, "tiny-0-1")
    deployed.cause("group 0 of tiny: worker 1 of 2 pods is missing")
    secret = f"/api/v1/namespaces/{deployed.namespace}/secrets/tiny-cluster"
    deployed.node.patch(secret, {"stringData": {"token": "b" * 64}})
    controller.paused = False
    found = deployed.cause("pod tiny-0: waits for node 1: the pod at 10.244.")
    assert "has another token" in found
    deployed.node.patch(secret, {"stringData": {"token": "a" * 64}})
    deployed.node.delete_pod(deployed.namespace, "tiny-0-1")
    assert deployed.run("apply") == 0
    assert deployed.complete(deployed.url()).startswith(" Paris")
