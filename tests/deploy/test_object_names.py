"""Names of objects and references of images: what a cluster refuses is refused before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.main import main
from penstock_ops.deploy.lint import lint
from penstock_ops.deploy.names import is_object_name, is_reference
from tests.deploy.conftest import HERE, Written

DIGEST = f"sha256:{32 * '0f'}"
REFERENCES = [
    "vllm",
    "vllm:v0.11",
    "vllm/vllm-openai:latest",
    "localhost:5000/a",
    "[::1]:5000/a/b:1",
    "Registry.example.com/team/a__b/c.d-e--f",
    f"registry/vllm@{DIGEST}",
    f"registry:5000/org/model:1@{DIGEST}",
    f"a@sha512:{128 * 'a'}",
    f"a:{128 * 'T'}",
    f"{255 * 'a'}:{128 * 'T'}@sha512:{128 * 'a'}",
]
"""By the grammar of github.com/distribution/reference."""
NO_REFERENCES = [
    "",
    "registry/vllm@sha256:...",
    "registry/vllm@sha256:0123",
    f"registry/vllm@sha256:{64 * 'G'}",
    f"registry/vllm@sha256:{64 * 'A'}",
    f"registry/vllm@md5:{32 * '0'}",
    "registry/VLLM",
    "docker://vllm",
    "registry/vllm:",
    "registry/vllm:a b",
    "registry//vllm",
    "registry/vllm/",
    "-vllm",
    "a..b",
    "a___b",
    "vllm\n",
    f"a:{129 * 'T'}",
    256 * "a",
    f"{2000 * 'a-'}",
    "registry..com/vllm",
    "registry.-a.com/vllm",
]


@pytest.mark.parametrize("text", REFERENCES)
def test_references_that_a_runtime_reads(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize("text", NO_REFERENCES)
def test_references_that_it_refuses(text: str) -> None:
    assert not is_reference(text)


@given(st.text("aZ0.-_é/", max_size=12))
def test_an_object_has_a_name_of_dns(text: str) -> None:
    labels = text.split(".")
    assert is_object_name(text) == all(
        label and set(label) <= set("a0-") and label[0] != "-" and label[-1] != "-"
        for label in labels
    )


def test_a_name_has_its_limit() -> None:
    assert is_object_name(253 * "a")
    assert not is_object_name(254 * "a")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--image", "r/vllm@sha256:...", "--claim", "c"), "--image"),
        (("--image", "", "--claim", "c"), "--image"),
        (("--image", "i", "--claim", "Weights_Bad"), "--claim"),
        (("--image", "i", "--claim", "c", "--api-key-secret", "My_Keys"), "--api-key-secret"),
        (("--image", "i", "--claim", "c", "--image-pull-secret", "a b"), "--image-pull-secret"),
        (("--image", "i", "--pull", "a/b", "--storage-class", "Fast"), "--storage-class"),
        (("--image", "i", "--claim", "c", "--kv-volume", "claim:A"), "--kv-volume"),
    ],
)
@pytest.mark.parametrize("target", ["k8s", "helm"])
def test_a_flag_with_such_a_name_is_refused(
    plan: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    target: str,
    words: tuple[str, ...],
    flag: str,
) -> None:
    asked = ["deploy", target, str(plan(HERE)), "-o", str(tmp_path / "out"), *words]
    assert main(asked) != 0
    assert flag in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["bench", "verify"])
def test_a_job_has_no_such_names(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    asked = ["deploy", target, str(plan(HERE)), "-o", str(tmp_path / "out"), "--image"]
    assert main([*asked, "r/penstock@sha256:..."]) != 0
    assert "--image" in capsys.readouterr().err
    assert main([*asked, "i", "--claim", "Weights_Bad"]) != 0
    assert "--claim" in capsys.readouterr().err


def changed_claim(pod: dict[str, Any]) -> None:
    (volume,) = (each for each in pod["volumes"] if each["name"] == "model")
    volume["persistentVolumeClaim"]["claimName"] = "Weights_Bad"


def changed_secret(pod: dict[str, Any]) -> None:
    source = {"secretKeyRef": {"name": "My_Keys", "key": "token"}}
    pod["containers"][0]["env"].append({"name": "HF_TOKEN", "valueFrom": source})


def changed_image(pod: dict[str, Any]) -> None:
    pod["containers"][0]["image"] = "registry/vllm@sha256:..."


def changed_pull_secret(pod: dict[str, Any]) -> None:
    pod["imagePullSecrets"] = [{"name": "registry_1"}]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (changed_claim, "name"),
        (changed_secret, "name"),
        (changed_pull_secret, "name"),
        (changed_image, "image"),
    ],
)
def test_lint_names_them(
    written: Written, tmp_path: Path, change: Callable[[dict[str, Any]], None], rule: str
) -> None:
    """The API server accepts each; the pod waits forever."""
    deployment = written(HERE, "--claim", "weights")["deployment.yaml"]
    change(deployment["spec"]["template"]["spec"])
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(deployment))
    assert [(each.rule, each.severity) for _, each in lint([path])] == [(rule, "error")]
