"""Planned time of a start: from a model's bytes to probes and time-outs of its pods.

The sizes are those of an index beside config.json; all else is computed here again by hand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.deploy.cluster.flags import longest
from tests.deploy.conftest import PLANS
from tests.plan.conftest import CONFIGS, FP8

SMALL, LARGE = 16_381_470_720, 688_586_727_753
"""Bytes of Qwen3-8B in bf16, and of DeepSeek-R1 in fp8."""
Made = Callable[..., dict[str, Any]]


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Made:
    """`made(kind, size, flags of plan, flags of deploy)`: plan, what it printed, manifests."""

    def make(kind: str, size: int, asked: list[str], place: list[str]) -> dict[str, Any]:
        name, *words = PLANS[kind]
        model = tmp_path / name.rpartition("/")[2]
        model.mkdir(exist_ok=True)
        quantised = {"quantization_config": FP8} if "DeepSeek" in name else {}
        (model / "config.json").write_text(json.dumps({**CONFIGS[name], **quantised}))
        index = {"metadata": {"total_size": size}, "weight_map": {}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        path, out = tmp_path / "plan.yaml", tmp_path / "manifests"
        load = ["--rate", "0.2", "--isl", "100", "--osl", "20", "--requests", "10", "--explain"]
        assert main(["plan", str(model), *words, *load, *asked, "-o", str(path)]) == 0
        printed = capsys.readouterr().out
        written = ["--image", "registry/engine:0", "-o", str(out), *place]
        assert main(["deploy", "k8s", str(path), *written]) == 0
        files = {file.name: yaml.safe_load(file.read_text()) for file in out.iterdir()}
        return {"plan": yaml.safe_load(path.read_text()), "printed": printed, **files}

    return make


def window(pod: dict[str, Any]) -> int:
    probe = pod["spec"]["containers"][0]["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def leader(found: dict[str, Any]) -> dict[str, Any]:
    templates = found["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    pod: dict[str, Any] = templates["leaderTemplate"]
    return pod


def flag(pod: dict[str, Any], name: str) -> int:
    (word,) = (each for each in pod["spec"]["containers"][0]["command"] if each.startswith(name))
    return int(word.partition("=")[2])


def tens(seconds: float) -> int:
    return math.ceil(seconds / 10) * 10


def test_a_small_model_of_one_pod(made: Made) -> None:
    """0.5 GB/s of a local disk and 180 s of start-up; a pod by itself waits for no image."""
    found = made("vllm-one-device", SMALL, [], ["--host-path", "/srv/models"])
    load = math.ceil(16.38147072 / 0.5 + 180)
    assert load == 213
    pod = found["deployment.yaml"]["spec"]
    assert window(pod["template"]) == tens(2 * load) == 430
    pull = 240  # 12 GB at 0.05 GB/s.
    assert pod["progressDeadlineSeconds"] == 3 * (load + pull)


def test_a_large_model_on_two_nodes(made: Made) -> None:
    """Each node of SGLang reads the whole checkpoint from a claim, at 0.5 GB/s; its leader waits
    for the others, which may pull the image.
    """
    found = made("sglang-two-nodes", LARGE, [], ["--claim", "w"])
    load = math.ceil(688.586727753 / 0.5 + 180)
    assert load == 1558
    assert window(leader(found)) == tens(2 * (load + 240))
    assert f"{load} s  = 688.59 GB of weights / 0.5 GB/s" in found["printed"]
    assert re.search(r"image pulled +240 s  = 12.0 GB / 0.05 GB/s", found["printed"])


def test_node_0_of_penstock_waits_for_images_and_weights(made: Made) -> None:
    """A node of Penstock reads the parts of its ranks."""
    found = made("penstock-two-nodes", LARGE, [], ["--claim", "w"])
    held = {rank: row["weights"] for row in found["plan"]["memory"] for rank in row["ranks"]}
    first = sum(held[rank] for rank in range(8))
    share = max(first, sum(held.values()) - first) / sum(held.values())
    load = math.ceil(688.586727753 * share / 0.5 + 180)
    assert 800 < load < 1558
    assert flag(leader(found), "--distributed-timeout-seconds=") == 2 * (load + 240)
    assert window(leader(found)) == tens(2 * (load + 240))


def test_apply_waits_as_long_as_a_start_may_take(made: Made) -> None:
    """Half an hour, or the startup probe's time, or that of a rollout."""

    found = made("vllm-one-device", SMALL, [], ["--claim", "w"])
    assert longest([found["service.yaml"], found["deployment.yaml"]]) == 1800
    found = made("sglang-two-nodes", LARGE, [], ["--claim", "w"])
    assert longest([found["leader-worker-set.yaml"]]) == 3600
    found = made("vllm-one-device", SMALL, ["--storage-rate", "0.02"], ["--claim", "w"])
    rollout = 3 * (math.ceil(16.38147072 / 0.02 + 180) + 240)
    assert longest([found["deployment.yaml"]]) == rollout == 3720


def test_rates_and_sizes_that_are_known(made: Made) -> None:
    asked = ["--storage-rate", "2", "--image-size", "30GB", "--pull-rate", "0.2"]
    found = made("penstock-stage-two-nodes", LARGE, asked, ["--claim", "w"])
    load = math.ceil(688.586727753 / 2 / 2 + 180)
    assert flag(leader(found), "--distributed-timeout-seconds=") == pytest.approx(
        2 * (load + 150), abs=4
    )
    row = found["plan"]["thresholds"]["storage_gb_per_s"]
    # What a load may take less the start-up, in place of the plan's 2 GB/s.
    assert row["expected"] == 2
    assert row["needed"] == pytest.approx(344.3 / (2 * load - 180), rel=0.01)


def test_bounds_of_a_load(made: Made) -> None:
    slow = made("sglang-two-nodes", LARGE, ["--storage-rate", "0.01"], ["--claim", "w"])
    assert slow["plan"]["start"]["weights"]["claim"]["seconds"] == 7200
    tiny = made("vllm-one-device", 1 << 20, ["--image-size", "1MB"], ["--claim", "w"])
    assert tiny["plan"]["start"]["image"]["seconds"] == 1
    assert tiny["plan"]["start"]["weights"]["claim"]["seconds"] == 181


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--storage-rate", "0"], "--storage-rate"),
        (["--pull-rate", "fast"], "--pull-rate"),
        (["--image-size", "large"], "--image-size"),
    ],
)
def test_rates_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Qwen/Qwen3-8B"]))
    asked = ["--on", "l40s-48gb", "--rate", "0.2", *words]
    assert main(["plan", str(tmp_path), *asked]) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_plan_without_times_of_its_start(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = made("vllm-one-device", SMALL, [], ["--claim", "w"])["plan"]
    del plan["start"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(plan))
    words = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "w"]
    assert main(["deploy", "k8s", str(tmp_path / "old.yaml"), *words]) == 1
    assert "old.yaml: start is missing; make the plan again" in capsys.readouterr().err
