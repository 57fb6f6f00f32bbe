"""Autoscalers: by the numbers of the plan, for the metrics of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from tests.deploy.conftest import HERE, PLANS, Written

MORE = ("--autoscale-to", "4")
KEDA = (*MORE, "--prometheus", "http://prometheus.monitoring:9090")
METRICS = {
    "sglang": ("sglang:num_queue_reqs", "sglang:token_usage"),
    "vllm": ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    "penstock": ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
}


def thresholds(path: Path) -> tuple[float, float]:
    found = yaml.safe_load(path.read_text())["thresholds"]
    return found["requests_waiting"]["needed"], found["kv_use"]["needed"]


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_thresholds_are_the_plans(written: Written, plan: Callable[[str], Path], kind: str) -> None:
    waiting, kv_use = thresholds(plan(kind))
    engine = yaml.safe_load(plan(kind).read_text())["engine"]
    files = written(kind, *MORE)
    metrics = files["horizontal-pod-autoscaler.yaml"]["spec"]["metrics"]
    found = {
        each["pods"]["metric"]["name"]: float(each["pods"]["target"]["averageValue"])
        for each in metrics
    }
    assert found == dict(zip(METRICS[engine], (waiting, kv_use), strict=True))
    assert "scaled-object.yaml" not in files


@pytest.mark.parametrize("words", [MORE, KEDA], ids=["custom-metrics", "keda"])
@pytest.mark.parametrize("kind", ["sglang-two-nodes", HERE])
def test_the_workload_leaves_its_number_to_the_autoscaler(
    written: Written, kind: str, words: tuple[str, ...]
) -> None:
    planned = written(kind)
    name = "deployment.yaml" if "deployment.yaml" in planned else "leader-worker-set.yaml"
    replicas = planned[name]["spec"]["replicas"]
    files = written(kind, *words)
    assert "replicas" not in files[name]["spec"]
    if words == KEDA:
        spec = files["scaled-object.yaml"]["spec"]
        least, most = spec["minReplicaCount"], spec["maxReplicaCount"]
    else:
        spec = files["horizontal-pod-autoscaler.yaml"]["spec"]
        least, most = spec["minReplicas"], spec["maxReplicas"]
    assert (least, most) == (replicas, 4)
    target = spec["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (
        files[name]["apiVersion"],
        files[name]["kind"],
    )
    assert target["name"] == files[name]["metadata"]["name"]


def test_keda_asks_prometheus_for_the_pods_that_serve(
    written: Written, plan: Callable[[str], Path]
) -> None:
    spec = written("sglang-two-nodes", *KEDA)["scaled-object.yaml"]["spec"]
    waiting, kv_use = spec["triggers"]
    assert waiting["metadata"]["query"] == (
        'sum(sglang:num_queue_reqs{pod=~"deepseek-r1-.+",container="engine"})'
    )
    numbers = tuple(float(each["metadata"]["threshold"]) for each in (waiting, kv_use))
    assert numbers == thresholds(plan("sglang-two-nodes"))
    assert waiting["metadata"]["serverAddress"] == KEDA[-1]


def test_replicas_come_no_faster_than_they_load_and_go_one_by_one(written: Written) -> None:
    spec = written(HERE, *MORE)["horizontal-pod-autoscaler.yaml"]["spec"]["behavior"]
    assert spec["scaleUp"]["policies"] == [{"type": "Pods", "value": 2, "periodSeconds": 600}]
    assert spec["scaleDown"]["policies"][0]["value"] == 1
    assert spec["scaleDown"]["stabilizationWindowSeconds"] == 300


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--autoscale-to", "1"], "the plan's 2 replicas"),
        (["--prometheus", "http://p"], "give --autoscale-to"),
    ],
)
def test_autoscalers_that_are_refused(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    said: str,
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c", *given]
    assert main(["deploy", "k8s", str(plan(HERE)), *asked]) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_plan_without_thresholds_of_load(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old: dict[str, Any] = yaml.safe_load(plan(HERE).read_text())
    del old["thresholds"]["kv_use"]
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(old))
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c", *MORE]
    assert main(["deploy", "k8s", str(path), *asked]) == 1
    assert "thresholds.kv_use is missing; make the plan again" in capsys.readouterr().err
