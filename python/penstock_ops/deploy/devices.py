"""Labels of the nodes that have a plan's devices."""

from __future__ import annotations

from collections.abc import Mapping

from penstock_ops.deploy.settings import Settings

DEVICE_LABEL = "nvidia.com/gpu.product"
"""Label that NVIDIA's GPU feature discovery, a part of the GPU operator, gives to nodes: the
driver's name of the device with hyphens for spaces.
"""
PRODUCTS: Mapping[str, str] = {
    "a10-24gb": "NVIDIA-A10",
    "a100-sxm-80gb": "NVIDIA-A100-SXM4-80GB",
    "a30-24gb": "NVIDIA-A30",
    "b200-sxm-180gb": "NVIDIA-B200",
    "h100-pcie-80gb": "NVIDIA-H100-PCIe",
    "h100-sxm-80gb": "NVIDIA-H100-80GB-HBM3",
    "h20-96gb": "NVIDIA-H20",
    "h200-sxm-141gb": "NVIDIA-H200",
    "l4-24gb": "NVIDIA-L4",
    "l40s-48gb": "NVIDIA-L40S",
}
"""Value of that label for accelerators of `penstock plan`."""


def node_selector(settings: Settings) -> dict[str, str]:
    """Labels that nodes must have: the user's, and the device's product, without which a pod for
    one device may start on a node with another of the same resource name.
    """
    found = dict(settings.node_selector or {})
    product = PRODUCTS.get(str(settings.plan["target"].get("accelerator", "")))
    if product and settings.has_devices and not settings.cluster.any_device:
        found.setdefault(DEVICE_LABEL, product)
    return found
