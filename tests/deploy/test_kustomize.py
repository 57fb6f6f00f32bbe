"""The kustomization that `--kustomize` writes, rendered by kubectl's own kustomize."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import HERE, PLANS, Written

EVERYTHING = (
    *("--kustomize", "--pod-monitor", "--autoscale-to", "4", "--pull", "org/name"),
    *("--gateway", "istio", "--gateway-image", "registry/penstock:1"),
)
DOCUMENT = Path(__file__).parents[2] / "docs/deploy.md"
DIGEST = "sha256:" + "2" * 64


def rendered(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, which renders kustomizations")
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True
    )
    return by_name(yaml.safe_load_all(done.stdout))


def by_name(objects: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.parametrize("kind", [*PLANS, HERE])
def test_it_renders_what_was_generated(written: Written, tmp_path: Path, kind: str) -> None:
    files = written(kind, *EVERYTHING)
    del files["kustomization.yaml"]
    assert rendered(tmp_path / "manifests") == by_name(files.values())


def test_an_overlay_changes_image_replicas_and_namespace(written: Written, tmp_path: Path) -> None:
    """The overlay of docs/deploy.md as it stands there."""
    files = written(HERE, "--kustomize", "--gateway", "proxy")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (overlay / "kustomization.yaml").write_text(example.replace("sha256:...", DIGEST))
    found = rendered(overlay)
    assert len(found) == len(files) - 1
    deployment = found["Deployment", "smollm2-135m"]
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry/engine@{DIGEST}"
    binding = found["RoleBinding", "smollm2-135m-gateway"]
    assert {each["metadata"]["namespace"] for each in found.values()} == {"models"}
    # kustomize finds the account that the binding means only by its namespace.
    assert binding["subjects"][0]["name"] == "smollm2-135m-gateway"
