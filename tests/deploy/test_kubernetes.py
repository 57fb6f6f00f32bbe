"""Objects made of plans: what every manifest must have, and those of the sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from tests.deploy.conftest import HERE, PLANS, Written, of_this_machine
from tests.deploy.topology.trees import PAIR


def pod_specs(files: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for manifest in files.values():
        spec = manifest.get("spec", {})
        if "leaderWorkerTemplate" in spec:
            templates = spec["leaderWorkerTemplate"]
            yield templates["leaderTemplate"]["spec"]
            yield templates["workerTemplate"]["spec"]
        elif "template" in spec:
            yield spec["template"]["spec"]


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_every_pod_is_safe_by_default(written: Written, kind: str) -> None:
    specs = list(pod_specs(written(kind)))
    assert specs
    for spec in specs:
        assert spec["enableServiceLinks"] is False
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("kind", ["penstock-two-nodes", "vllm-two-nodes", "vllm-one-device"])
@pytest.mark.parametrize("gateway", [(), ("--gateway", "proxy", "--gateway-image", "penstock")])
def test_pods_that_serve_take_connections_until_no_node_sends_them(
    written: Written, gateway: tuple[str, ...], kind: str
) -> None:
    for spec in pod_specs(written(kind, *gateway)):
        (container,) = spec["containers"]
        if "ports" not in container:
            continue
        hook = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        (draining,) = (
            int(word.partition("=")[2])
            for word in container["command"]
            if word.startswith("--shutdown-timeout=")
        )
        assert hook >= 5
        assert spec["terminationGracePeriodSeconds"] >= hook + draining + 5


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_selectors_find_the_pods_that_serve(written: Written, kind: str) -> None:
    files = written(kind, "--pod-monitor")
    group = files.get("leader-worker-set.yaml")
    if group:
        templates = group["spec"]["leaderWorkerTemplate"]
        found = templates["leaderTemplate"]["metadata"]["labels"]
        others = templates["workerTemplate"]["metadata"]["labels"]
        assert not files["service.yaml"]["spec"]["selector"].items() <= others.items()
    else:
        found = files["deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
        selector = files["deployment.yaml"]["spec"]["selector"]["matchLabels"]
        assert selector.items() <= found.items()
    for name, path in (
        ("service.yaml", ("selector",)),
        ("disruption-budget.yaml", ("selector", "matchLabels")),
        ("pod-monitor.yaml", ("selector", "matchLabels")),
        ("network-policy.yaml", ("podSelector", "matchLabels")),
    ):
        labels = files[name]["spec"]
        for key in path:
            labels = labels[key]
        assert labels.items() <= found.items()


def container(files: dict[str, Any], part: str = "leaderTemplate") -> dict[str, Any]:
    manifest = files.get("leader-worker-set.yaml")
    if manifest is None:
        found: dict[str, Any] = files["deployment.yaml"]["spec"]["template"]["spec"]
    else:
        found = manifest["spec"]["leaderWorkerTemplate"][part]["spec"]
    first: dict[str, Any] = found["containers"][0]
    return first


def test_source_002(written: Written) -> None:
    """DeepSeek-R1 over two servers by SGLang, as deployed there; docs/deploy.md has differences."""
    files = written("sglang-two-nodes", "--rdma-devices", "mlx5_0,mlx5_1")
    group = files["leader-worker-set.yaml"]["spec"]
    assert group["leaderWorkerTemplate"]["size"] == 2
    assert group["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader, worker = container(files), container(files, "workerTemplate")
    assert leader["command"] == worker["command"]
    for word in (
        "--tp-size=16",
        "--mem-fraction-static=0.85",
        "--dist-init-addr=$(LWS_LEADER_ADDRESS):20000",
        "--nnodes=$(LWS_GROUP_SIZE)",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--enable-metrics",
    ):
        assert word in leader["command"]
    limits = leader["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"
    assert limits["rdma/rdma_shared_devices_h"] == "1"
    variables = {entry["name"]: entry.get("value") for entry in leader["env"]}
    assert variables["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert variables["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert "NCCL_IB_CUDA_SUPPORT" not in variables  # Removed from NCCL in 2.4.
    assert leader["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "startupProbe" in leader
    assert "livenessProbe" not in worker


def test_source_000(written: Written) -> None:
    """QwQ-32B by vLLM as two stages of two ranks: four A10 of a server here."""
    files = written("vllm-one-node")
    command = container(files)["command"]
    assert command[:3] == ["vllm", "serve", "/models"]
    assert "--tensor-parallel-size=2" in command
    assert "--pipeline-parallel-size=2" in command
    assert "--gpu-memory-utilization=0.95" in command
    assert container(files)["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_other_nodes_of_vllm_serve_nothing(written: Written) -> None:
    files = written("vllm-two-nodes")
    leader, worker = container(files), container(files, "workerTemplate")
    assert "--headless" not in leader["command"]
    assert "--headless" in worker["command"]
    assert "ports" not in worker


def test_penstock_probes_a_port_of_its_own_and_other_nodes_by_their_heartbeat(
    written: Written,
) -> None:
    files = written("penstock-two-nodes", "--api-key-secret", "keys")
    leader, worker = container(files), container(files, "workerTemplate")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert leader[probe]["httpGet"]["port"] == "metrics"
    assert worker["livenessProbe"]["exec"]["command"][2:] == ["penstock", "node-health"]
    secrets = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in leader["env"] if "valueFrom" in e}
    assert secrets["PENSTOCK_API_KEY"] == {"name": "keys", "key": "api-key"}
    assert secrets["PENSTOCK_CLUSTER_TOKEN"]["key"] == "token"
    assert "PENSTOCK_API_KEY" not in {entry["name"] for entry in worker["env"]}
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    assert group["restartPolicy"] == "None"


def test_a_machine_without_devices_is_restricted_and_bounded(written: Written) -> None:
    files = written(HERE)
    spec = files["deployment.yaml"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    own = container(files)
    assert own["securityContext"]["readOnlyRootFilesystem"] is True
    assert own["resources"]["limits"]["memory"] == f"{15 << 10}Mi"
    assert f"--kv-cache-memory-bytes={4 << 30}" in own["command"]
    assert files["deployment.yaml"]["spec"]["replicas"] == 2


def test_a_pod_asks_for_what_the_process_needs_and_not_for_the_node(tmp_path: Path) -> None:
    """Weights of 92 MiB, 180 of KV, 100 of the process: a tenth more than these."""
    plan = of_this_machine()
    mib = 1 << 20
    row = {"total": 16 << 30, "weights": 92 * mib, "kv": 180 * mib, "process": 100 * mib}
    row |= {"kept_free": 1 << 30, "activations": 0, "shared_memory": 0}
    row["left"] = row["total"] - sum(value for key, value in row.items() if key != "total")
    plan["memory"] = [{**row, "ranks": [0]}]
    path, out = tmp_path / "plan.yaml", tmp_path / "manifests"
    path.write_text(yaml.safe_dump(plan))
    words = ["--image", "registry/engine:1", "--claim", "weights", "-o", str(out)]
    assert main(["deploy", "k8s", str(path), *words]) == 0
    own = container({"deployment.yaml": yaml.safe_load((out / "deployment.yaml").read_text())})
    asked = {kind: own["resources"][kind]["memory"] for kind in ("limits", "requests")}
    assert asked == {"limits": "410Mi", "requests": "410Mi"}
    assert f"--kv-cache-memory-bytes={180 * mib}" in own["command"]


def test_penstock_takes_its_flags(written: Written) -> None:
    from penstock.cli.main import parser

    command = container(written("penstock-two-nodes"))["command"]
    assert parser().parse_args(command[3:]).model == "/models"


@pytest.mark.parametrize("kind", ["penstock-stage-two-nodes", "vllm-stage-two-nodes"])
def test_a_stage_over_two_nodes_takes_nccl_between_them(written: Written, kind: str) -> None:
    files = written(kind, "--rdma-devices", "mlx5_0,mlx5_1", "--interface", "net1")
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 2
    for part in ("leaderTemplate", "workerTemplate"):
        own = container(files, part)
        words = own["command"]
        assert {"--tensor-parallel-size=16", "--pipeline-parallel-size=1"} <= set(words)
        assert {"--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)"} <= set(words)
        assert own["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert own["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        variables = {entry["name"]: entry.get("value") for entry in own["env"]}
        assert variables["NCCL_SOCKET_IFNAME"] == "=net1"
        assert variables["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
        volumes = group[part]["spec"]["volumes"]
        (shm,) = (each["emptyDir"] for each in volumes if each["name"] == "shm")
        assert shm == {"medium": "Memory", "sizeLimit": "8192Mi"}


def test_penstocks_own_ranks_are_those_of_the_pods(written: Written) -> None:
    """What the executor does with the flags of the manifest: eight ranks of the stage on each."""
    from penstock.config import ranks_of_nodes

    group = written("penstock-stage-two-nodes")["leader-worker-set.yaml"]["spec"]
    held = ranks_of_nodes(16, 1, group["leaderWorkerTemplate"]["size"])
    assert held == [range(8), range(8, 16)]


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_variables_between_nodes_have_their_reasons(
    written: Written, tmp_path: Path, kind: str
) -> None:
    """Every variable of NCCL and Gloo is explained in the pods that have it, and no other one."""
    topology = tmp_path / "vm.xml"
    topology.write_text(PAIR)
    words = ("--rdma-devices", "mlx5_0") if kind != "sglang-by-requests" else ()
    files = written(kind, *words, *(() if words else ("--topology-file", str(topology))))
    for manifest in files.values():
        spec = manifest["spec"] if manifest["kind"] == "LeaderWorkerSet" else {}
        group = spec.get("leaderWorkerTemplate", {})
        pods = [group[part] for part in ("leaderTemplate", "workerTemplate") if part in group]
        if manifest["kind"] == "Deployment":
            pods = [manifest["spec"]["template"]]
        for pod in pods:
            (own,) = pod["spec"]["containers"]
            names = {entry["name"] for entry in own.get("env", [])}
            between = {name for name in names if name.startswith(("NCCL", "GLOO"))}
            text = pod["metadata"].get("annotations", {}).get("penstock/variables", "")
            reasons = dict(each.split(": ", 1) for each in text.split("; ") if text)
            assert reasons.keys() == between
            assert all(reasons.values())


def test_whole_stages_on_nodes_need_no_nccl_between_them(written: Written) -> None:
    env = container(written("penstock-two-nodes"))["env"]
    assert not any("NCCL" in entry["name"] for entry in env)


def test_a_model_is_pulled_into_a_claim(written: Written) -> None:
    files = written(
        "vllm-one-device", "--pull", "Qwen/Qwen3-8B", "--storage-class", "fast", "--model-path", "q"
    )
    size = files["claim.yaml"]["spec"]["resources"]["requests"]["storage"]
    assert size == "20Gi"
    (pull,) = files["pull-job.yaml"]["spec"]["template"]["spec"]["containers"]
    assert pull["command"][-2:] == ["Qwen/Qwen3-8B", "/models/q"]
    volumes = files["deployment.yaml"]["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == "qwen3-8b-model"
    assert container(files)["command"][2] == "/models/q"


def test_kernels_are_kept_in_a_claim_that_a_job_fills(written: Written, tmp_path: Path) -> None:
    """Nothing else is written to there; a claim is only read where no pod compiles any."""
    files = written("penstock-two-nodes", "--pull", "org/name")
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    spec = group["leaderTemplate"]["spec"]
    claim = {"claimName": files["claim.yaml"]["metadata"]["name"]}
    assert spec["volumes"][0]["persistentVolumeClaim"] == claim
    model, kernels = [
        each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "model"
    ]
    assert model == {"name": "model", "mountPath": "/models", "readOnly": True}
    where = {"mountPath": "/tmp/.triton/cache", "subPath": ".kernels"}
    assert kernels == {"name": "model", **where}
    assert {"name": "HOME", "value": "/tmp"} in spec["containers"][0]["env"]
    for files in (
        written(HERE, "--claim", "c"),
        written(HERE, "--pull", "org/name"),  # Processors run no kernels of Triton.
        written("vllm-one-device", "--pull", "org/name"),
    ):
        spec = files["deployment.yaml"]["spec"]["template"]["spec"]
        assert spec["volumes"][0]["persistentVolumeClaim"]["readOnly"] is True
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        mounts = [mount for each in containers for mount in each["volumeMounts"]]
        assert all(each.get("readOnly") for each in mounts if each["name"] == "model")


def test_a_model_is_in_an_image(written: Written) -> None:
    """Image volumes: `image` with a reference, mounted read-only; nothing is made or filled."""
    reference = f"registry:5000/org/model:1@sha256:{4 * '0123456789abcdef'}"
    files = written("penstock-two-nodes", "--image-volume", reference, "--model-path", "m")
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        spec = group[part]["spec"]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "model")
        assert volume == {"name": "model", "image": {"reference": reference}}
        mounts = spec["containers"][0]["volumeMounts"]
        (mount,) = (each for each in mounts if each["name"] == "model")
        assert mount == {"name": "model", "mountPath": "/models", "readOnly": True}
        assert "/models/m" in spec["containers"][0]["command"]
    assert not {"claim.yaml", "pull-job.yaml"} & files.keys()


def test_amd_devices_are_asked_for_by_their_name(written: Written) -> None:
    assert container(written("amd"))["resources"]["limits"] == {"amd.com/gpu": "2"}


def test_equal_plans_give_equal_bytes(plan: Callable[[str], Path], tmp_path: Path) -> None:
    path, texts = str(plan("vllm-two-nodes")), []
    for out in (tmp_path / "one", tmp_path / "two"):
        words = ["--image", "i", "-o", str(out), "--claim", "c", "--kustomize"]
        assert main(["deploy", "k8s", path, *words]) == 0
        texts.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert texts[0] == texts[1]
    listed = yaml.safe_load(texts[0]["kustomization.yaml"])["resources"]
    assert {*listed, "kustomization.yaml"} == set(texts[0])


def test_no_target_edits_the_plan(plan: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(plan(HERE).read_bytes())
    before = path.read_bytes()
    image, model = ["--image", "registry/engine"], ["--model-path", "/srv/models/m"]
    asked = {
        "k8s": [*image, "--claim", "c", "-o", "k8s", "--kustomize", "--autoscale-to", "4"],
        "ray": [*image, "--claim", "c", "-o", "ray"],
        "helm": [*image, "--claim", "c", "-o", "chart"],
        "compose": [*image, "--host-path", "/srv/models", "-o", "compose.yaml"],
        "systemd": [*model, "-o", "unit"],
        "slurm": [*model, "-o", "job.sh"],
    }
    for target, words in asked.items():
        at = words.index("-o") + 1
        words[at] = str(tmp_path / words[at])
        assert main(["deploy", target, str(path), *words]) == 0, target
        assert path.read_bytes() == before, target


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one of --claim, --host-path, --image-volume, --pull"),
        (["--claim", "a", "--pull", "b/c"], "one of --claim, --host-path, --image-volume"),
        (["--claim", "a", "--image-volume", "b"], "one of --claim, --host-path, --image-volume"),
        (["--image-volume", "oci://registry/model:1"], "--image-volume"),
        (["--image-volume", "registry/a model"], "--image-volume"),
        (["--claim", "a", "--name", "Not_A_Name"], "--name"),
        (["--claim", "a", "--node-selector", "gpu"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_deployed(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), *words]
    assert main(["deploy", "k8s", str(plan(HERE)), *asked]) in (1, 2)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "per_node": 4},
            "6 ranks do not divide over 2 pods",
        ),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "replicas": 0},
            "choice.replicas",
        ),
    ],
)
def test_plans_that_pods_cannot_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, int], said: str
) -> None:
    broken = of_this_machine()
    broken["target"]["per_node"] = changes.pop("per_node", 1)
    broken["choice"] |= changes
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(broken))
    words = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c"]
    assert main(["deploy", "k8s", str(path), *words]) == 1
    assert said in capsys.readouterr().err


def test_files_of_an_earlier_call_are_named(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m"
    words = ["deploy", "k8s", str(plan(HERE)), "--image", "i", "--claim", "c", "-o", str(out)]
    out.mkdir()
    (out / "own.yaml").write_text("kind: Secret\n")
    assert main([*words, "--gateway", "proxy", "--gateway-image", "g"]) == 0
    printed = capsys.readouterr().out
    assert "of an earlier call" not in printed
    assert "note: open: whoever reaches the Service may use it" in printed
    assert main(words) == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if "earlier call" in line]
    assert ("gateway-deployment.yaml, " in note, "own.yaml" in note) == (True, False)
    assert main([*words, "--api-key-secret", "keys"]) == 0
    assert "note: open" not in capsys.readouterr().out


def test_what_a_deployment_needs_is_said(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    written("penstock-two-nodes")
    printed = capsys.readouterr().out
    assert "kubectl create secret generic deepseek-r1-cluster" in printed
    assert "IPC_LOCK" in printed
    assert "kubernetes-sigs/lws/releases/download/v0.9.0/manifests.yaml" in printed
    assert "--device cuda is measured on one H100" in printed


def test_a_model_that_no_backend_runs_is_said(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(plan("penstock-two-nodes").read_text())
    document["model"]["runs"] = "no backend runs NewForCausalLM yet"
    path = tmp_path / "new.yaml"
    path.write_text(yaml.safe_dump(document))
    words = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c"]
    assert main(["deploy", "k8s", str(path), *words]) == 0
    assert "these pods cannot run: no backend runs NewForCausalLM" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_servers_listen_at_addresses_of_both_families(written: Written, kind: str) -> None:
    """`::`, or the pod's own address: a cluster has IPv4, IPv6 or both. uvicorn, which serves
    SGLang, makes sockets of IPv6 that refuse IPv4.
    """
    files = written(kind, "--gateway", "proxy", "--gateway-image", "penstock")
    containers = [spec["containers"][0] for spec in pod_specs(files)]
    assert len(containers) >= 2
    for own in containers:
        (host,) = (word for word in own["command"] if word.startswith("--host="))
        if kind.startswith("sglang") and own["name"] == "engine":
            assert host == "--host=$(POD_IP)"
            field = {"fieldRef": {"fieldPath": "status.podIP"}}
            assert {"name": "POD_IP", "valueFrom": field} in own["env"]
        else:
            assert host == "--host=::"
        assert not any("0.0.0.0" in word for word in own["command"])
