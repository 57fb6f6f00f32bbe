"""KV tiers of a deployment: the flag of `serve`, and what pods need for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.main import main, parser
from penstock_ops.deploy.lint import lint
from tests.deploy.conftest import HERE, Written

TIERS = ("--kv-tier", "ram:4GiB", "--kv-tier", "disk:/var/kv,64GiB")


def test_ram_is_memory_of_the_pod_and_a_disk_a_volume(written: Written) -> None:
    spec = written(HERE, *TIERS)["deployment.yaml"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = [word for word in container["command"] if word.startswith("--kv-tier=")]
    assert given == ["--kv-tier=ram:4GiB", "--kv-tier=disk:/var/kv,64GiB"]
    assert parser().parse_args(container["command"][3:])
    assert container["resources"]["limits"]["memory"] == f"{(15 + 4) << 10}Mi"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert mounts["kv"] == "/var/kv"
    assert volumes["kv"]["emptyDir"] == {"sizeLimit": f"{72 << 10}Mi"}


def test_a_pod_of_a_group_has_its_share(written: Written) -> None:
    files = written("penstock-two-nodes", *TIERS)
    group = files["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        volumes = {volume["name"]: volume for volume in group[part]["spec"]["volumes"]}
        assert volumes["kv"]["emptyDir"] == {"sizeLimit": f"{36 << 10}Mi"}


def test_a_shared_store_needs_nothing_of_the_pod(written: Written) -> None:
    files = written(HERE, "--kv-tier", "redis://cache:6379/0")
    spec = files["deployment.yaml"]["spec"]["template"]["spec"]
    assert "kv" not in {volume["name"] for volume in spec["volumes"]}
    assert "--kv-tier=redis://cache:6379/0" in spec["containers"][0]["command"]


@pytest.mark.parametrize(
    ("kind", "tiers", "said"),
    [
        ("sglang-two-nodes", ["ram:1GiB"], "--kv-tier is Penstock's"),
        ("vllm-one-device", ["s3://bucket/prefix"], "redis://HOST:PORT"),
        ("vllm-one-device", ["ram:1GiB,quota=0.5"], "redis://HOST:PORT"),
        ("vllm-one-device", ["ram:1GiB", "ram:2GiB"], "one ram tier"),
        (HERE, ["ram:lots"], "--kv-tier"),
        (HERE, ["disk:/a,1GiB", "disk:/b,1GiB"], "one disk"),
        (HERE, ["disk:kv,1GiB"], "an absolute path"),
        (HERE, ["redis://user:secret@cache:6379/0"], "password"),
    ],
)
def test_tiers_that_are_refused(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    tiers: list[str],
    said: str,
) -> None:
    asked = ["--image", "i", "-o", str(tmp_path / "m"), "--claim", "c"]
    words = [word for tier in tiers for word in ("--kv-tier", tier)]
    assert main(["deploy", "k8s", str(plan(kind)), *asked, *words]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert "secret@" not in error


Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, Change] = {
    "a disk without a volume": lambda spec: spec["containers"][0]["volumeMounts"].pop(),
    "a disk that is read-only": lambda spec: spec["containers"][0]["volumeMounts"][-1].update(
        readOnly=True
    ),
    "a volume that is too small": lambda spec: spec["volumes"][-1]["emptyDir"].update(
        sizeLimit="60Gi"
    ),
    "more RAM than the pod has": lambda spec: spec["containers"][0]["resources"]["limits"].update(
        memory="4Gi"
    ),
}


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_lint_finds_tiers_that_do_not_fit(
    written: Written, tmp_path: Path, wrong: str | None
) -> None:
    deployment = written(HERE, *TIERS)["deployment.yaml"]
    if wrong is not None:
        WRONG[wrong](deployment["spec"]["template"]["spec"])
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(deployment))
    found = [(finding.rule, finding.severity) for _, finding in lint([file])]
    assert found == ([] if wrong is None else [("kv-tier", "error")])


def test_tiers_of_the_plan_are_the_default(
    plan: Callable[[str], Path], tmp_path: Path, written: Written
) -> None:
    document = yaml.safe_load(plan("penstock-two-nodes").read_text())
    target, choice = document["target"], document["choice"]
    target["per_node"] = 2 * choice["tensor_parallel_size"] * choice["pipeline_parallel_size"]
    choice["tiers"] = [
        {"kind": "ram", "bytes": 64 << 30, "gb_per_s": None, "tokens": 1},
        {"kind": "disk", "bytes": 1 << 40, "gb_per_s": 6, "tokens": 1},
    ]
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    asked = [str(path), "--image", "i", "--claim", "c", "-o"]
    for folder, words, expected in (
        ("planned", [], ["--kv-tier=ram:32768MiB", "--kv-tier=disk:/var/kv,524288MiB"]),
        ("given", ["--kv-tier", "ram:1GiB"], ["--kv-tier=ram:1GiB"]),
    ):
        assert main(["deploy", "k8s", *asked, str(tmp_path / folder), *words]) == 0
        made = yaml.safe_load((tmp_path / folder / "deployment.yaml").read_text())
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert [w for w in container["command"] if w.startswith("--kv-tier=")] == expected
