"""NicClusterPolicy: offers each network adapter of a node as an RDMA resource that pods can
request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.core import PenstockError
from penstock_ops.deploy.facts import Facts
from penstock_ops.deploy.operators.versions import PUBLISHED, network_operator
from penstock_ops.deploy.settings import Settings

PREFIX = "rdma/"
SHARES = 63
"""Maximum number of pods that may share a network adapter."""


def nic_cluster_policy(
    facts: Facts, settings: Settings, release: str = PUBLISHED.network_operator
) -> dict[str, object]:
    """The policy, for a release of the network operator. It is cluster-wide: there is one for the
    whole cluster, without a namespace. PenstockError unless each RDMA resource of the plan has an
    interface, and the release's images are known.
    """
    return policy(facts.labels("network"), settings.plan, settings.nic_interfaces, release)


def policy(
    labels: Mapping[str, str], plan: Mapping[str, Any], interfaces: Sequence[str], release: str
) -> dict[str, object]:
    row = network_operator(release)
    if row is None or row.driver is None or row.plugin is None:
        raise PenstockError(
            f"the images of network operator {release} are not known here: take those of its page "
            "Container Images, or --network-operator 25.4.0"
        )
    config = json.dumps(_config(plan, interfaces), indent=2)
    return {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy", "labels": dict(labels)},
        "spec": {
            "ofedDriver": asdict(row.driver),
            # The device plugin's configuration is a JSON text, which the API server does not
            # validate.
            "rdmaSharedDevicePlugin": {**asdict(row.plugin), "config": config},
        },
    }


def _config(plan: Mapping[str, Any], interfaces: Sequence[str]) -> dict[str, object]:
    fabric = plan["target"]["fabric_resources"]
    names = [name.removeprefix(PREFIX) for name in fabric if name.startswith(PREFIX)]
    if len(names) != len(interfaces):
        raise PenstockError(
            f"{len(interfaces)} interfaces for the plan's {len(names)} RDMA "
            f"resources ({', '.join(names) or 'none'}): --nic-interfaces names one for each"
        )
    return {
        "configList": [
            {
                "resourceName": name,
                "rdmaHcaMax": SHARES,
                "selectors": {"vendors": ["15b3"], "ifNames": [interface]},
            }
            for name, interface in zip(names, interfaces, strict=True)
        ]
    }
