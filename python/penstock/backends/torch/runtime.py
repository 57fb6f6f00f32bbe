"""The module of torch for a device (torch.cuda), and the device's row of
`penstock.config.devices`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from penstock.config.devices import DEVICES, DeviceKind
from penstock.core import PenstockError


def accelerated(device: torch.device) -> bool:
    """True for a device of the table; False for torch's CPU device and for meta tensors."""
    return device.type in DEVICES


def kind_of(device: torch.device) -> DeviceKind:
    return DEVICES[device.type]


def runtime(device: torch.device) -> Any:
    """Streams, events and memory of the device."""
    return torch.get_device_module(device)


def resolved(name: str) -> Any:
    """The function or class named `module:attribute`."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def process_group(kind: DeviceKind) -> Any:
    """Class of the process group between devices. Raises PenstockError where torch is built without
    it.
    """
    name = kind.process_group
    found = resolved(name) if ":" in name else getattr(dist, name, None)
    if found is None:
        raise PenstockError(
            f"torch {torch.__version__} is built without {kind.library}, which connects the "
            f"{kind.unit}s of several ranks: install another one"
        )
    return found
