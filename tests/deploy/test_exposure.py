"""Who reaches the pods, and where they run: Services, policies, routes, nodes, monitoring."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock.config.foreign_environment import lmcache_settings
from penstock_ops.deploy.devices import PRODUCTS
from penstock_ops.deploy.lint import lint
from penstock_ops.plan.hardware import accelerator
from tests.deploy.conftest import FRONT, HERE, Written
from tests.deploy.test_storage import changed, pod_of

PICKER = (*FRONT, "--gateway", "istio", "--name", "tiny")
PROXY = (*FRONT, "--gateway", "proxy", "--name", "tiny")


def allowed(policy: dict[str, Any], port: int, namespace: str = "", **labels: str) -> bool:
    """Whether a NetworkPolicy lets a pod with these labels in; an empty namespace is its own."""
    for rule in policy["spec"]["ingress"]:
        ports = [each["port"] for each in rule.get("ports", [])]
        peers = rule.get("from")
        if (not ports or port in ports) and (
            peers is None or any(_matches(peer, namespace, labels) for peer in peers)
        ):
            return True
    return False


def _matches(peer: dict[str, Any], namespace: str, labels: dict[str, str]) -> bool:
    """As Kubernetes defines a peer: without namespaceSelector it is of the policy's namespace."""
    spaces = peer.get("namespaceSelector")
    selector = peer.get("podSelector", {})
    pods = selector.get("matchLabels", {})
    existing = {each["key"] for each in selector.get("matchExpressions", [])}
    named = {"kubernetes.io/metadata.name": namespace}
    there = (
        not namespace if spaces is None else spaces.get("matchLabels", {}).items() <= named.items()
    )
    own = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return there and pods.items() <= own.items() and existing <= own.keys()


OWN = {"app.kubernetes.io__instance": "tiny"}


@pytest.mark.parametrize("engine", [HERE, "vllm-one-device", "sglang-two-nodes"])
def test_only_the_gateway_and_monitoring_reach_the_servers(written: Written, engine: str) -> None:
    policy = written(engine, *PROXY)["network-policy.yaml"]
    metrics = 8001 if engine == HERE else 8000
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "tiny"}
    assert allowed(policy, 8000, **OWN), "its gateway, and the ranks"
    assert allowed(policy, 29501, **OWN)
    assert not allowed(policy, 8000, app="other")
    assert not allowed(policy, 8000, "elsewhere", **OWN)
    assert allowed(policy, metrics, "monitoring", app="prometheus")
    assert not allowed(policy, metrics, "elsewhere", app="prometheus")
    assert not allowed(policy, 29501, "monitoring")


def test_the_proxies_of_a_gateway_reach_the_servers(written: Written) -> None:
    policy = written("vllm-one-device", *PICKER)["network-policy.yaml"]
    for label in (
        "gateway.networking.k8s.io__gateway_name",
        "gateway.envoyproxy.io__owning_gateway_name",
    ):
        assert allowed(policy, 8000, "envoy-system", **{label: "tiny-gateway"})
    assert not allowed(policy, 8000, "envoy-system", app="envoy")


def test_without_a_gateway_clients_reach_the_api_alone(written: Written) -> None:
    words = ("--claim", "w", "--name", "tiny", "--monitoring-namespace", "watch")
    policy = written(HERE, *words)["network-policy.yaml"]
    assert allowed(policy, 8000, "elsewhere", app="client")
    assert not allowed(policy, 8001, "elsewhere", app="client")
    assert allowed(policy, 8001, "watch")
    assert not allowed(policy, 8001, "monitoring")


def test_a_plain_listener_balances_beside_the_picker(written: Written, tmp_path: Path) -> None:
    """Source 000: 8081 asks the picker, 8080 does not, and neither route serves the other port."""
    files = written("vllm-one-device", *PICKER, "--listener", "8081", "--plain-listener", "8080")
    listeners = {each["name"]: each["port"] for each in files["gateway.yaml"]["spec"]["listeners"]}
    routes = {
        listeners[route["parentRefs"][0]["sectionName"]]: route["rules"][0]["backendRefs"]
        for name in ("http-route.yaml", "plain-http-route.yaml")
        for route in [files[name]["spec"]]
    }
    service = files["service.yaml"]
    (port,) = service["spec"]["ports"]
    assert routes[8080] == [{"name": service["metadata"]["name"], "port": port["port"]}]
    assert [each["kind"] for each in routes[8081]] == ["InferencePool"]
    assert not lint([tmp_path / "manifests"])
    del files["http-route.yaml"]["spec"]["parentRefs"][0]["sectionName"]
    assert changed(files, tmp_path / "other") == [("listener", "warning")]


def test_a_canary_and_a_mirror_of_a_gateway(written: Written, tmp_path: Path) -> None:
    files = written("vllm-one-device", *PICKER, "--canary", "next=10", "--mirror", "shadow=5")
    (rule,) = files["http-route.yaml"]["spec"]["rules"]
    weights = {each["name"]: each["weight"] for each in rule["backendRefs"]}
    assert weights == {"tiny": 90, "next": 10}
    (copied,) = rule["filters"]
    assert copied["requestMirror"] == {"backendRef": {"name": "shadow", "port": 8000}, "percent": 5}
    (finding,) = [finding for _, finding in lint([tmp_path / "manifests"])]
    assert (finding.rule, finding.severity) == ("route", "warning")


def test_a_canary_and_a_mirror_of_a_proxy(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway's own linter knows every key of its configuration."""
    files = written(HERE, *PROXY, "--canary", "next=10", "--mirror", "shadow=5")
    config = tmp_path / "gateway.yaml"
    config.write_text(files["gateway-config.yaml"]["data"]["gateway.yaml"])
    assert main(["route", "lint", "--config", str(config)]) == 0, capsys.readouterr()
    content = yaml.safe_load(config.read_text())
    (model,) = content["models"]
    assert {each["pool"]: each["weight"] for each in model["targets"]} == {"tiny": 90, "next": 10}
    pools = {pool["name"]: pool for pool in content["pools"]}
    assert pools["tiny"]["mirror"] == {"pool": "shadow", "share": 0.05}
    other = written(HERE, "--claim", "w", "--name", "next")["deployment.yaml"]["spec"]
    selector = pools["next"]["kubernetes"]["selector"]
    assert selector.items() <= other["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("mode", ["FailClose", "FailOpen"])
def test_the_failure_mode_of_the_pool(written: Written, tmp_path: Path, mode: str) -> None:
    files = written("vllm-one-device", *PICKER, "--failure-mode", mode)
    assert files["inference-pool.yaml"]["spec"]["endpointPickerRef"]["failureMode"] == mode
    found = [finding.rule for _, finding in lint([tmp_path / "manifests"])]
    assert found == (["failure-mode"] if mode == "FailOpen" else [])


def test_services_have_the_families_that_the_server_accepts(
    written: Written, tmp_path: Path
) -> None:
    """SGLang listens at one address of its pod."""
    for kind, policy in ((HERE, "PreferDualStack"), ("sglang-two-nodes", "SingleStack")):
        spec = written(kind)["service.yaml"]["spec"]
        assert spec["ipFamilyPolicy"] == policy
        assert "ipFamilies" not in spec
    files = written("sglang-two-nodes", "--ip-family", "IPv4")
    assert files["service.yaml"]["spec"]["ipFamilies"] == ["IPv4"]
    files["service.yaml"]["spec"]["ipFamilyPolicy"] = "PreferDualStack"
    assert changed(files, tmp_path / "other") == [("ip-family", "error")]
    spec = written(HERE, *PROXY, "--ip-family", "IPv6")["gateway-service.yaml"]["spec"]
    assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == ("SingleStack", ["IPv6"])


def test_the_service_for_clients_has_the_type(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    balancer = ("--service-type", "LoadBalancer")
    files = written(HERE, *balancer, "--api-key-secret", "keys")
    assert files["service.yaml"]["spec"]["type"] == "LoadBalancer"
    assert "without --api-key-secret" not in capsys.readouterr().out
    assert not lint([tmp_path / "manifests"])
    files = written(HERE, *PROXY, *balancer)
    assert "without --api-key-secret" in capsys.readouterr().out
    assert files["service.yaml"]["spec"]["type"] == "ClusterIP", "only the gateway's is for clients"
    assert files["gateway-service.yaml"]["spec"]["type"] == "LoadBalancer"
    assert changed(files, tmp_path / "other") == [("open", "warning")]


def test_secrets_for_images_are_in_all_pods(written: Written) -> None:
    words = (
        "--pull",
        "o/n",
        *PROXY[2:],
        "--image-pull-secret",
        "one",
        "--image-pull-secret",
        "two",
    )
    files = written(HERE, *words)
    for name in ("deployment.yaml", "gateway-deployment.yaml", "pull-job.yaml"):
        spec = files[name]["spec"]["template"]["spec"]
        assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}], name


def test_prometheus_finds_the_pods_that_have_metrics(written: Written, tmp_path: Path) -> None:
    files = written("sglang-two-nodes", *PICKER[2:], "--claim", "w", "--scrape-annotations")
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    found = {
        "leader": group["leaderTemplate"],
        "worker": group["workerTemplate"],
        "gateway": files["gateway-deployment.yaml"]["spec"]["template"],
    }
    ports = {
        name: part["metadata"].get("annotations", {}).get("prometheus.io/port")
        for name, part in found.items()
    }
    assert ports == {"leader": "8000", "worker": None, "gateway": "8080"}
    assert not lint([tmp_path / "manifests"])
    found["leader"]["metadata"]["annotations"] |= {
        "prometheus.io/port": "9999",
        "prometheus.io/scrape": True,
    }
    assert changed(files, tmp_path / "other") == [("scrape", "error")] * 2


def test_pods_are_spread_and_select_the_nodes_of_their_device(
    written: Written, tmp_path: Path
) -> None:
    files = written("sglang-two-nodes", "--replicas", "2")
    pod = pod_of(files)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert {each["topologyKey"] for each in pod["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    requests = pod["containers"][0]["resources"]["requests"]
    assert requests["cpu"] == "10", "eight ranks, the API server and the scheduler"
    assert requests["memory"] == f"{(9 * 4 + 8) << 10}Mi"
    assert not lint([tmp_path / "manifests"])
    del pod["nodeSelector"], pod["topologySpreadConstraints"], requests["cpu"]
    found = changed(files, tmp_path / "other")
    assert sorted(found) == [(rule, "warning") for rule in ("device-nodes", "requests", "spread")]
    own = ("--node-selector", "nvidia.com/gpu.product=NVIDIA-H100-NVL")
    assert pod_of(written("sglang-two-nodes", *own))["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-H100-NVL"
    }
    assert "nodeSelector" not in pod_of(written("sglang-two-nodes", "--any-device"))


def test_the_product_labels_are_those_of_devices_that_plans_know() -> None:
    for name, label in PRODUCTS.items():
        assert accelerator(name).resource == "nvidia.com/gpu"
        assert label.startswith("NVIDIA-")


def test_lint_names_a_policy_beside_the_gateway(written: Written, tmp_path: Path) -> None:
    files = written(HERE, *PROXY)
    files["network-policy.yaml"]["spec"]["ingress"].append({"ports": [{"port": 8000}]})
    assert changed(files, tmp_path / "other") == [("policy", "warning")]


def test_lint_names_a_secret_without_a_name(written: Written, tmp_path: Path) -> None:
    files = written(HERE)
    files["deployment.yaml"]["spec"]["template"]["spec"]["imagePullSecrets"] = [{"nam": "x"}]
    assert changed(files, tmp_path / "other") == [("pull-secret", "error")]


def test_flags_override_the_choice_of_the_plan(
    plan: Callable[[str], Path],
    written: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    room = yaml.safe_load(plan("vllm-one-device").read_text())["choice"]["kv_tokens"]
    files = written("vllm-one-device", "--max-model-len", str(room), "--replicas", "5")
    assert files["deployment.yaml"]["spec"]["replicas"] == 5
    assert f"--max-model-len={room}" in pod_of(files)["containers"][0]["command"]
    asked = ["deploy", "k8s", str(plan("vllm-one-device")), "-o", str(tmp_path / "o"), "--image"]
    for words in (
        ["--max-model-len", str(room + 1)],
        ["--max-model-len", "0"],
        ["--replicas", "0"],
    ):
        assert main([*asked, "i", "--claim", "c", *words]) != 0
        assert words[0] in capsys.readouterr().err


FLAGS = [
    (["--canary", "next=10"], "give --gateway, too"),
    (["--gateway", "proxy", "--failure-mode", "FailOpen"], "give --gateway CLASS"),
    (["--gateway", "proxy", "--plain-listener", "8080"], "give --gateway CLASS"),
    (["--gateway", "istio", "--plain-listener", "80"], "another port"),
    (["--gateway", "istio", "--listener", "70000"], "1 to 65535"),
    (["--gateway", "istio", "--canary", "next"], "NAME=PERCENT"),
    (["--gateway", "istio", "--mirror", "next=100"], "1 to 99"),
    (["--gateway", "istio", "--service-type", "NodePort"], "its own Service"),
    (["--gateway", "proxy", "--name", "tiny", "--mirror", "tiny=5"], "another deployment"),
]


@pytest.mark.parametrize(("words", "why"), FLAGS)
def test_flags_that_do_not_go_together(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    why: str,
) -> None:
    asked = ["deploy", "k8s", str(plan(HERE)), "-o", str(tmp_path / "o"), "--image", "i"]
    assert main([*asked, "--claim", "c", *words]) != 0
    assert why in capsys.readouterr().err


def test_a_job_runs_the_load_in_the_cluster(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench"
    asked = ["deploy", "bench", str(plan(HERE)), "-o", str(out), "--image", "r/p:0"]
    words = ["--name", "tiny", "--claim", "c", "--model-path", "m", "--api-key-secret", "keys"]
    assert main([*asked, *words]) == 0
    assert "kubectl logs -f job/tiny-bench" in capsys.readouterr().out
    assert not lint([out])
    job = yaml.safe_load((out / "bench-job.yaml").read_text())
    content = yaml.safe_load((out / "bench-plan.yaml").read_text())
    assert content["data"]["plan.yaml"] == plan(HERE).read_text()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    assert command[3:6] == ["bench", "plan", "/etc/penstock/plan.yaml"]
    assert {"--base-url=http://tiny:8000", "--tokenizer=/models/m"} <= set(command)
    assert job["spec"]["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"
    assert "OPENAI_API_KEY" in {entry["name"] for entry in container["env"]}
    also = ("--bench", "serve", "--base-url")
    published = "serve --backend vllm --model /models/m --dataset-name random --num-prompts 300"
    assert main([*asked, "--name", "tiny", "--bench", published]) == 0
    (container,) = yaml.safe_load((out / "bench-job.yaml").read_text())["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["command"][3:] == ["bench", *published.split()]
    for words in ((*also, "http://x"), ("--bench", "serve '")):
        assert main([*asked, *words]) != 0


def test_the_words_of_the_job_are_those_of_bench(
    plan: Callable[[str], Path], tmp_path: Path
) -> None:
    """`penstock bench` itself reads them."""
    out = tmp_path / "bench"
    asked = ["deploy", "bench", str(plan("vllm-one-device")), "-o", str(out), "--image", "i"]
    assert main(asked) == 0
    pod = yaml.safe_load((out / "bench-job.yaml").read_text())["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"][3:]
    words[words.index("/etc/penstock/plan.yaml")] = str(plan("vllm-one-device"))
    words += ["--ready-check-timeout-sec", "0"]
    url = next(word for word in words if word.startswith("--base-url"))
    words[words.index(url)] = "--base-url=http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "usage" not in done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_vllm_has_its_tiers_by_lmcache(written: Written, tmp_path: Path) -> None:
    """Penstock reads LMCache's variables itself, independently: they mean the tiers of the flags,
    whose sizes are of all ranks.
    """
    tiers = ("ram:64GiB", "disk:/var/kv,1TiB", "redis://cache:6379/0")
    words = [word for tier in tiers for word in ("--kv-tier", tier)]
    files = written("vllm-two-nodes", *words, "--kv-volume", "claim-per-pod")
    pod = pod_of(files)
    (container,) = pod["containers"]
    (flag,) = [word for word in container["command"] if word.startswith("--kv-transfer-config=")]
    config = json.loads(flag.partition("=")[2])
    assert config == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    environ = {entry["name"]: str(entry.get("value")) for entry in container["env"]}
    meant = lmcache_settings(environ, 16)["kv_tier"]
    assert meant == (f"ram:{64 << 30}", f"disk:/var/kv,{1 << 40}", "redis://cache:6379/0")
    requests = container["resources"]["requests"]
    assert requests["memory"] == f"{(9 * 4 + 8 + 32) << 10}Mi"
    assert not lint([tmp_path / "manifests"])
    direct = ("--kv-tier", "disk:/mnt/gds,1TiB,gds=true", "--kv-volume", "hostpath:/mnt/nvme")
    container = pod_of(written("vllm-two-nodes", *direct))["containers"][0]
    environ = {entry["name"]: str(entry.get("value")) for entry in container["env"]}
    assert environ["LMCACHE_LOCAL_CPU"] == "False"
    assert lmcache_settings(environ, 16)["kv_tier"] == (f"disk:/mnt/gds,{1 << 40},gds=true",)


def test_nodes_of_two_devices_make_the_groups_of_source_000(
    plan: Callable[[str], Path], tmp_path: Path
) -> None:
    """Three replicas of two pods with two devices each, TP2 in a pod, PP2 over pods."""
    found = yaml.safe_load(plan("vllm-one-node").read_text())
    found["target"]["per_node"] = 2
    path, out = tmp_path / "plan.yaml", tmp_path / "manifests"
    path.write_text(yaml.safe_dump(found))
    words = ["--image", "r/vllm:0", "--claim", "llm-model", "--replicas", "3"]
    assert main(["deploy", "k8s", str(path), "-o", str(out), *words]) == 0
    spec = yaml.safe_load((out / "leader-worker-set.yaml").read_text())["spec"]
    group = spec["leaderWorkerTemplate"]
    assert (spec["replicas"], group["size"]) == (3, 2)
    for role in ("leaderTemplate", "workerTemplate"):
        (container,) = group[role]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        sizes = {"--tensor-parallel-size=2", "--pipeline-parallel-size=2"}
        assert sizes <= set(container["command"])
    assert not lint([out])
