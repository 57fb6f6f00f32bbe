"""NicClusterPolicy: offers each network adapter of a node as an RDMA resource that pods can
request.
"""

from __future__ import annotations

import json

from penstock.core import PenstockError
from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.settings import Settings

PREFIX = "rdma/"
SHARES = 63
"""Maximum number of pods that may share a network adapter."""
DRIVER = {
    "image": "doca-driver",
    "repository": "nvcr.io/nvidia/mellanox",
    "version": "25.04-0.6.1.0-2",
}
PLUGIN = {
    "image": "k8s-rdma-shared-dev-plugin",
    "repository": "ghcr.io/mellanox",
    "version": "v1.5.3",
}
"""Images of the driver and of the device plugin, with the versions in the guide "Deploy Distributed
LLM Inference with GPUDirect RDMA".
"""


def nic_cluster_policy(facts: Facts, settings: Settings) -> dict[str, object]:
    """The policy. It is cluster-wide: there is one for the whole cluster, without a namespace.
    PenstockError unless each RDMA resource of the plan has an interface.
    """
    return {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy", "labels": facts.labels("network")},
        "spec": {
            "ofedDriver": dict(DRIVER),
            # The device plugin's configuration is a JSON text, which the API server does not
            # validate.
            "rdmaSharedDevicePlugin": {**PLUGIN, "config": json.dumps(_config(settings), indent=2)},
        },
    }


def _config(settings: Settings) -> dict[str, object]:
    fabric = settings.plan["target"]["fabric_resources"]
    names = [name.removeprefix(PREFIX) for name in fabric if name.startswith(PREFIX)]
    if len(names) != len(settings.nic_interfaces):
        raise PenstockError(
            f"{len(settings.nic_interfaces)} interfaces for the plan's {len(names)} RDMA "
            f"resources ({', '.join(names) or 'none'}): --nic-interfaces names one for each"
        )
    return {
        "configList": [
            {
                "resourceName": name,
                "rdmaHcaMax": SHARES,
                "selectors": {"vendors": ["15b3"], "ifNames": [interface]},
            }
            for name, interface in zip(names, settings.nic_interfaces, strict=True)
        ]
    }
