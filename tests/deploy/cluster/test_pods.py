"""Pods of a plan on a real node: they serve, and changes under load lose no request."""

from __future__ import annotations

import os
import signal

import pytest

from tests.deploy.cluster.pods import Deployed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_one_pod_serves_through_its_service_and_is_deleted_with_it(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed.write()
    assert deployed.run("apply") == 0, capsys.readouterr()
    assert deployed.complete(deployed.url()).startswith(" Paris")
    capsys.readouterr()
    assert deployed.run("status") == 0
    assert capsys.readouterr().out == "Deployment tiny: 1 of 1 ready\n"
    assert deployed.run("diff") == 0
    other = {"metadata": {"name": "other"}, "data": {"is": "not ours"}}
    space = f"/api/v1/namespaces/{deployed.namespace}/configmaps"
    deployed.node.call("POST", space, other)
    assert deployed.run("delete") == 0
    assert deployed.node.pods(deployed.namespace) == []
    assert deployed.node.call("GET", f"{space}/other")["data"] == other["data"]


def test_scale_rollout_and_drain_lose_no_request(deployed: Deployed) -> None:
    deployed.write(replicas=2)
    assert deployed.run("apply") == 0
    with deployed.load(deployed.url(), streams=2) as failed:
        deployed.edit("deployment.yaml", "replicas: 2", "replicas: 3")
        assert deployed.run("apply") == 0
        deployed.ready(3)
        assert not failed
        deployed.edit("deployment.yaml", "max-num-seqs=8", "max-num-seqs=7")
        assert deployed.run("apply") == 0
        deployed.ready(3)
        assert not failed
        name = deployed.pods()[0]["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        deployed.node.call("POST", f"{deployed.path('pods', name)}/eviction", eviction)
        deployed.ready(3)
        assert not failed
        deployed.edit("deployment.yaml", "replicas: 3", "replicas: 1")
        assert deployed.run("apply") == 0
        deployed.ready(1)
    assert not failed


def test_replicas_behind_the_gateway_may_roll_and_die(deployed: Deployed) -> None:
    """The gateway learns of pods from the API server, by its own account."""
    deployed.write("--gateway", "proxy", replicas=2)
    assert deployed.run("apply") == 0
    with deployed.load(deployed.url("tiny-gateway")) as failed:
        deployed.edit("deployment.yaml", "max-num-seqs=8", "max-num-seqs=7")
        assert deployed.run("apply") == 0
        deployed.ready(4)
        assert not failed
        (victim, _) = deployed.pods(component="server")
        for pid in deployed.node.processes(victim):
            os.kill(pid, signal.SIGKILL)
        deployed.cause("was ended by SIGKILL (exit status 137), 1 restarts")
        deployed.ready(4)
    assert not failed
