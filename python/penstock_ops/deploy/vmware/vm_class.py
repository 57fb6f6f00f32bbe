"""VirtualMachineClass: the devices of a virtual machine in their order, and how it maps them."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_ops.deploy.vmware.host import Machines
from penstock_ops.plan.hardware.pci import PciIds

RELAXED = {"pciPassthru.allowP2P": "true", "pciPassthru.relaxACSforP2P": "true"}
"""Lets GPU and adapter of a virtual machine exchange data below the root (source 002, 10.1)."""


def vm_class(machines: Machines) -> dict[str, object]:
    """The class. All of its memory is reserved, as passed devices need it. It has no namespace: the
    kind is a cluster's or a namespace's, by the version of the Supervisor.
    """
    options = {
        **RELAXED,
        "pciPassthru.use64bitMMIO": "TRUE",
        "pciPassthru.64bitMMIOSizeGB": str(machines.mmio_gib),
    }
    return {
        "apiVersion": "vmoperator.vmware.com/v1alpha1",
        "kind": "VirtualMachineClass",
        "metadata": {"name": machines.class_name},
        "spec": {
            "hardware": {
                "cpus": machines.cpus,
                "memory": machines.memory,
                "devices": {"dynamicDirectPathIODevices": [*devices(machines)]},
            },
            "policies": {"resources": {"requests": {"memory": machines.memory}}},
            "configSpec": {
                "_typeName": "VirtualMachineConfigSpec",
                "firmware": "efi",
                "extraConfig": [_option(key, value) for key, value in options.items()],
            },
        },
    }


def devices(machines: Machines) -> Iterator[dict[str, object]]:
    """GPU 0, adapter 0, GPU 1, ... and the NVSwitches: the order in which the machine's bus has
    them, on which its topology file relies.
    """
    node = machines.node
    for number in range(node.pairs):
        yield _device(node.gpu, f"GPU{number}")
        yield _device(node.nic, f"NIC{number}")
    for number in range(len(node.nvlinks)):
        yield _device(node.switch, f"NVS{number}")


def _device(ids: PciIds, label: str) -> dict[str, object]:
    numbers = {"vendorID": int(ids.vendor, 16), "deviceID": int(ids.device, 16)}
    return {**numbers, "customLabel": label}


def _option(key: str, value: str) -> dict[str, object]:
    return {
        "_typeName": "OptionValue",
        "key": key,
        "value": {"_typeName": "string", "_value": value},
    }
