"""`penstock deploy operators`: versions that fit together, values, order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from penstock.cli.main import main
from penstock_ops.deploy.operators.versions import (
    NETWORK_OPERATORS,
    PUBLISHED,
    misfits,
    network_operator,
    version,
)
from tests.deploy.test_definitions import validators

PLAN = "sglang-two-nodes"
INTERFACES = "ibs65,ibs67,ibs69,ibs71,ibs73,ibs75,ibs77,ibs79"
Made = Callable[..., dict[str, str]]


@pytest.fixture
def made(plan: Callable[[str], Path], tmp_path: Path) -> Made:
    def make(*words: str) -> dict[str, str]:
        out = tmp_path / "operators"
        assert main(["deploy", "operators", str(plan(PLAN)), "-o", str(out), *words]) == 0
        return {path.name: path.read_text() for path in out.iterdir()}

    return make


def test_the_values_have_one_feature_discovery(made: Made) -> None:
    files = made()
    network, gpu = (
        yaml.safe_load(files[f"{name}-operator-values.yaml"]) for name in ("network", "gpu")
    )
    assert [each["nfd"]["enabled"] for each in (network, gpu)] == [True, False]
    # As source 002 sets it, with the module that exports GPU memory as dma-buf.
    assert gpu["driver"]["rdma"]["enabled"] is True
    assert gpu["driver"]["kernelModuleType"] == "open"
    assert gpu["driver"]["version"] == "570.148.08"
    assert "nic-cluster-policy.yaml" not in files


def test_the_order_of_the_commands(made: Made) -> None:
    lines = made("--nic-interfaces", INTERFACES)["operators.txt"].splitlines()
    places = [
        next(place for place, line in enumerate(lines) if text in line)
        for text in (
            "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia",
            "namespace nvidia-network-operator pod-security.kubernetes.io/enforce=privileged",
            "nvidia/network-operator -n nvidia-network-operator --version v25.4.0",
            "kubectl apply -f nic-cluster-policy.yaml",
            "--for=jsonpath='{.status.state}'=ready",
            "nvidia/gpu-operator -n gpu-operator --version v25.3.0",
        )
    ]
    assert places == sorted(places)
    assert all("--wait" in line for line in lines if line.startswith("helm upgrade"))


def test_the_policy_is_that_of_the_network_operator(made: Made) -> None:
    policy = yaml.safe_load(made("--nic-interfaces", INTERFACES)["nic-cluster-policy.yaml"])
    assert [*validators()["NicClusterPolicy"].iter_errors(policy)] == []
    assert "namespace" not in policy["metadata"]
    assert policy["spec"]["ofedDriver"] == {
        "image": "doca-driver",
        "repository": "nvcr.io/nvidia/mellanox",
        "version": "25.04-0.6.1.0-2",
    }
    rows = json.loads(policy["spec"]["rdmaSharedDevicePlugin"]["config"])["configList"]
    assert [row["selectors"]["ifNames"] for row in rows] == [[n] for n in INTERFACES.split(",")]


FITS = {
    "published": ({}, []),
    # Source 002, chapter 9.4 and table 3.
    "Fabric Manager 575": ({"fabric_manager": "575.57.08-1"}, ["Fabric Manager 575.57.08-1"]),
    "Fabric Manager 570": ({"fabric_manager": "570.86.15"}, ["Fabric Manager 570.86.15 differ"]),
    "package": ({"fabric_manager": "570.148.08-1"}, []),
    "new Kubernetes": ({"kubernetes": "v1.33.4"}, ["is for Kubernetes 1.29 to 1.32, not v1.33.4"]),
    "old Kubernetes": ({"kubernetes": "1.28"}, ["is for Kubernetes 1.29 to 1.32"]),
    "VMware's": ({"kubernetes": "v1.32.0---vmware.6-fips-vkr.2"}, []),
    "old network operator": (
        {"network_operator": "v24.10.0"},
        ["network operator v24.10.0 is for Kubernetes 1.27 to 1.30, not 1.32"],
    ),
    "old GPU operator": ({"gpu_operator": "24.9.2"}, ["needs GPU operator 25.3, not 24.9.2"]),
    "old driver": (
        {"driver": "510.47.03", "fabric_manager": "510.47.03"},
        ["needs the open kernel module of 515 or later"],
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_what_fits_together(name: str) -> None:
    changes, expected = FITS[name]
    found = [*misfits(replace(PUBLISHED, **changes))]
    errors = [misfit.text for misfit in found if misfit.severity == "error"]
    assert len(errors) == len(expected)
    assert all(part in text for part, text in zip(expected, errors, strict=True))


@pytest.mark.parametrize(
    ("text", "why"),
    [("25.4.0", "25.4.0 gets no more fixes"), ("27.1.0", "27.1.0 is not in the table (24.10, ")],
)
def test_warnings(text: str, why: str) -> None:
    (found,) = misfits(replace(PUBLISHED, network_operator=text))
    assert found.severity == "warning"
    assert why in found.text


def test_the_table() -> None:
    for row in NETWORK_OPERATORS:
        assert row.kubernetes[0] <= row.kubernetes[1]
        assert (row.driver is None) == (row.plugin is None)
        assert network_operator(".".join(map(str, (*row.release, 0)))) is row
    assert [row.release for row in NETWORK_OPERATORS] == sorted(
        row.release for row in NETWORK_OPERATORS
    )


@pytest.mark.parametrize("text", ["", "latest", "25", "25.x", "25.4.0 ", "v", "25.4.0\n"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="a version such as"):
        version("--driver", text)


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "Fabric Manager": (("--fabric-manager", "575.57.08-1"), "both are the same to the last digit"),
    "version": (("--driver", "newest"), "--driver is 'newest', expected a version"),
    "images": (
        ("--network-operator", "26.1.2", "--nic-interfaces", INTERFACES),
        "the images of network operator 26.1.2 are not known here",
    ),
    "interfaces": (("--nic-interfaces", "ibs65"), "--nic-interfaces names one for each"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words, why = REFUSED[name]
    out = tmp_path / "operators"
    assert main(["deploy", "operators", str(plan(PLAN)), "-o", str(out), *words]) != 0
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_the_versions_of_source_002_are_named(
    plan: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "operators"
    assert main(["deploy", "operators", str(plan(PLAN)), "-o", str(out)]) == 0
    assert "warning: network operator 25.4.0 gets no more fixes" in capsys.readouterr().err
