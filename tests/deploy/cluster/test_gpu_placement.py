"""Plans for GPUs on pretended nodes: the scheduler finds a node for each rank, and all serve."""

from __future__ import annotations

import pytest

from tests.deploy.cluster.gpus import NAME, OnGpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_one_node_of_eight(on_gpus: OnGpus, capsys: pytest.CaptureFixture[str]) -> None:
    on_gpus.write("vllm-eight-devices")
    on_gpus.add_nodes(2)
    assert on_gpus.run("status") == 1
    assert f"Deployment {NAME}: is not in the cluster" in capsys.readouterr().out
    assert on_gpus.apply() == 0
    (place,) = on_gpus.places().values()
    assert place in ("gpu-1", "gpu-2")
    capsys.readouterr()
    assert on_gpus.run("status") == 0
    assert capsys.readouterr().out == f"Deployment {NAME}: 1 of 1 ready\n"


@pytest.mark.parametrize("kind", ["penstock-two-nodes", "sglang-two-nodes", "vllm-two-nodes"])
def test_a_group_of_two_nodes(
    on_gpus: OnGpus, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpus.write(kind)
    on_gpus.add_nodes(2)
    on_gpus.token()
    assert on_gpus.apply() == 0
    assert set(on_gpus.places()) == {f"{NAME}-0", f"{NAME}-0-1"}
    assert sorted(on_gpus.places().values()) == ["gpu-1", "gpu-2"]
    leader, worker = sorted(on_gpus.pods(), key=lambda pod: str(pod["metadata"]["name"]))
    (container,) = worker["spec"]["containers"]
    address = next(one for one in container["env"] if one["name"] == "LWS_LEADER_ADDRESS")
    assert address["value"] == leader["status"]["podIP"]
    capsys.readouterr()
    assert on_gpus.run("status") == 0
    assert capsys.readouterr().out == f"LeaderWorkerSet {NAME}: 1 of 1 groups ready\n"


def test_two_groups_on_four_nodes(on_gpus: OnGpus, capsys: pytest.CaptureFixture[str]) -> None:
    on_gpus.write("penstock-two-nodes", replicas=2)
    on_gpus.add_nodes(4)
    on_gpus.token()
    assert on_gpus.apply() == 0
    assert sorted(on_gpus.places().values()) == [f"gpu-{number}" for number in range(1, 5)]
    assert f"LeaderWorkerSet {NAME}: 2 of 2 groups ready" in capsys.readouterr().out


def test_replicas_and_a_rollout_without_a_node_to_spare(
    on_gpus: OnGpus, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new pod waits for the devices of an old one, so one replica at a time is down."""
    on_gpus.write("vllm-eight-devices", replicas=3)
    on_gpus.add_nodes(3)
    assert on_gpus.apply() == 0
    before = on_gpus.places()
    assert sorted(before.values()) == ["gpu-1", "gpu-2", "gpu-3"]
    on_gpus.edit("deployment.yaml", "engine:1", "engine:2")
    assert on_gpus.apply() == 0
    after = on_gpus.places()
    assert sorted(after.values()) == ["gpu-1", "gpu-2", "gpu-3"]
    assert not before.keys() & after.keys()
    assert f"Deployment {NAME}: 3 of 3 ready" in capsys.readouterr().out


def test_small_replicas_share_a_node(on_gpus: OnGpus) -> None:
    on_gpus.write("vllm-one-node", replicas=2)
    on_gpus.add_nodes(1)
    assert on_gpus.apply() == 0
    assert list(on_gpus.places().values()) == ["gpu-1", "gpu-1"]
