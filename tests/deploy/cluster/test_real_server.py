"""apply and diff against a real API server: through kubectl, and without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.cluster.conftest import deploy
from tests.kubernetes.bed import ADMIN, Bed
from tests.kubernetes.binary import binary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

BY_TOKEN = {"token": ADMIN}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed")) as made:
        yield made


def kubectl(folder: Path) -> Path:
    """A directory with a kubectl, which is the test bed's binary."""
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {binary()} kubectl "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("way", ["kubectl", "direct"])
def test_what_was_applied_is_no_difference_any_more(
    bed: Bed,
    manifests: Path,
    tmp_path: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = kubectl(tmp_path / "bin") if way == "kubectl" else tmp_path
    monkeypatch.setenv("PATH", f"{folder}:/bin" if way == "kubectl" else str(folder))
    assert (shutil.which("kubectl") == str(folder / "kubectl")) is (way == "kubectl")
    bed.namespace(way)
    where = ("--kubeconfig", bed.kubeconfig(f"{way}.yaml", BY_TOKEN, way))
    assert deploy("diff", manifests, *where) == 1
    assert "+++ applied: Deployment tiny" in capsys.readouterr().out
    assert deploy("apply", manifests, "--no-wait", *where) == 0
    assert "Deployment tiny: created" in capsys.readouterr().out
    assert deploy("diff", manifests, *where) == 0, capsys.readouterr().out
    assert deploy("apply", manifests, "--no-wait", *where) == 0
    assert "created" not in (said := capsys.readouterr().out)
    assert "configured" not in said
    scale = f"/apis/apps/v1/namespaces/{way}/deployments/tiny?fieldManager=hpa"
    bed.patch(scale, {"spec": {"replicas": 5}})
    assert deploy("apply", manifests, "--no-wait", *where) == 1
    said = capsys.readouterr().err
    assert 'conflict with "hpa"' in said
    assert ".spec.replicas" in said
    assert deploy("apply", manifests, "--no-wait", "--force-conflicts", *where) == 0
    assert "Deployment tiny: configured" in capsys.readouterr().out
    job = manifests / "pull-job.yaml"
    job.write_text(job.read_text().replace("registry/engine:0", "registry/engine:2"))
    assert deploy("diff", manifests, *where) == 1
    assert "replaced" in capsys.readouterr().out


def test_a_namespace_that_is_not_there_is_named(
    bed: Bed, manifests: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--kubeconfig", bed.kubeconfig("none.yaml", BY_TOKEN), "-n", "nowhere")
    assert deploy("apply", manifests, *where) == 1
    assert "kubectl create namespace nowhere" in capsys.readouterr().err
