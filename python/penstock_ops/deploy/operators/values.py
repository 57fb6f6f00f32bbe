"""Values for the Helm charts of NVIDIA's operators, and the commands that install them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock_ops.deploy.emit import dump
from penstock_ops.deploy.operators.versions import Versions

REPOSITORY = "https://helm.ngc.nvidia.com/nvidia"
NETWORK, GPU = "nvidia-network-operator", "gpu-operator"
"""Namespaces of the operators, and beginnings of file names."""
NETWORK_VALUES, GPU_VALUES = "network-operator-values.yaml", "gpu-operator-values.yaml"
POLICY = "nic-cluster-policy.yaml"
COMMANDS = "operators.txt"
PRIVILEGED = "pod-security.kubernetes.io/enforce=privileged"
"""Label of a namespace whose pods load drivers."""
PATIENCE = "--timeout=30m"
"""A driver may be compiled on each node."""


def network_values() -> dict[str, object]:
    """Its node feature discovery labels nodes for both operators: a cluster has one."""
    return {"nfd": {"enabled": True}}


def gpu_values(versions: Versions) -> dict[str, object]:
    """The network operator's driver is in the nodes, so GPUDirect RDMA builds on it."""
    return {
        "nfd": {"enabled": False},
        "driver": {
            "version": versions.driver.removeprefix("v"),
            "kernelModuleType": "open",
            "rdma": {"enabled": True, "useHostMofed": False},
        },
        "dcgmExporter": {"enabled": True, "serviceMonitor": {"enabled": False}},
    }


def operator_files(versions: Versions, *, policy: bool) -> Mapping[str, str]:
    """Texts by file name. `policy` says that a NicClusterPolicy is beside them."""
    return {
        NETWORK_VALUES: dump(network_values()),
        GPU_VALUES: dump(gpu_values(versions)),
        COMMANDS: "\n".join(commands(versions, policy=policy)) + "\n",
    }


def commands(versions: Versions, *, policy: bool) -> Sequence[str]:
    """Lines of a shell. The network operator is first: GPUDirect RDMA in the GPU driver needs its
    network driver.
    """
    found = ["# Run in this directory, in this order.", f"helm repo add nvidia {REPOSITORY}"]
    found += _installed(NETWORK, "network-operator", versions.network_operator, NETWORK_VALUES)
    if policy:
        ready = "--for=jsonpath='{.status.state}'=ready"
        found.append(f"kubectl apply -f {POLICY}")
        found.append(f"kubectl wait nicclusterpolicy nic-cluster-policy {ready} {PATIENCE}")
    else:
        found.append("# Apply a NicClusterPolicy here: --nic-interfaces writes one.")
    found += _installed(GPU, "gpu-operator", versions.gpu_operator, GPU_VALUES)
    found += [
        "# Each GPU node then has driver-ready and toolkit-ready, and mofed-ready for RDMA:",
        "kubectl -n gpu-operator exec ds/nvidia-operator-validator -- ls /run/nvidia/validations",
    ]
    return found


def _installed(namespace: str, chart: str, version: str, values: str) -> list[str]:
    number = version.removeprefix("v")
    make = f"kubectl create namespace {namespace} --dry-run=client -o yaml"
    where = f"-n {namespace} --version v{number} -f {values}"
    return [
        f"{make} | kubectl apply -f -",
        f"kubectl label --overwrite namespace {namespace} {PRIVILEGED}",
        f"helm upgrade --install {chart} nvidia/{chart} {where} --wait {PATIENCE}",
    ]
