"""Cluster of Cluster API: a control plane, and a node for each virtual machine with GPUs."""

from __future__ import annotations

from penstock_ops.deploy.vmware.host import Machines

IMAGE = {"run.tanzu.vmware.com/resolve-os-image": "os-name=ubuntu"}
PODS, SERVICES = "192.168.156.0/20", "10.96.0.0/12"
"""Networks of source 002, example 4."""


def cluster(machines: Machines) -> dict[str, object]:
    node_pool = {
        "class": "node-pool",
        "name": "gpu",
        "replicas": machines.count,
        "metadata": {"annotations": dict(IMAGE)},
        "variables": {
            "overrides": [
                {"name": "vmClass", "value": machines.class_name},
                {"name": "volumes", "value": [_containers(machines)]},
            ]
        },
    }
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Cluster",
        "metadata": {
            "name": machines.name,
            "namespace": machines.namespace,
            "labels": {"tkg-cluster-selector": machines.name},
        },
        "spec": {
            "clusterNetwork": {
                "pods": {"cidrBlocks": [PODS]},
                "services": {"cidrBlocks": [SERVICES]},
                "serviceDomain": "cluster.local",
            },
            "topology": {
                "class": machines.cluster_class,
                "version": machines.kubernetes,
                "variables": [
                    {"name": "vmClass", "value": machines.control_plane_class},
                    {"name": "storageClass", "value": machines.storage_class},
                ],
                "controlPlane": {"replicas": 1, "metadata": {"annotations": dict(IMAGE)}},
                "workers": {"machineDeployments": [node_pool]},
            },
        },
    }


def _containers(machines: Machines) -> dict[str, object]:
    """A volume for container images, which are tens of GB each."""
    return {
        "name": "containerd",
        "mountPath": "/var/lib/containerd",
        "storageClass": machines.storage_class,
        "capacity": machines.containers,
    }
