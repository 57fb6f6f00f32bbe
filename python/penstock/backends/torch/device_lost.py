"""Detection of a lost device by fatal errors (on GPUs, CUDA errors). After such an error, the
process cannot use the device again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.backends.torch.runtime import kind_of, runtime
from penstock.config.devices import DEVICES
from penstock.core import DeviceLostError


def remedy() -> str:
    """Text for the error: the process cannot use the device again, and where each device in the
    table reports the cause.
    """
    known = (kind.remedy for kind in DEVICES.values() if kind.remedy)
    return " ".join(["This process cannot use it again.", *known])


def is_loss(error: BaseException) -> bool:
    """True if the error destroyed the device's context: an invalid memory access, a GPU that fell
    off the bus, an uncorrectable memory error. Recognises the messages of all devices in the table.
    """
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(
        any(mark in text for mark in kind.fatal) and not any(mark in text for mark in kind.passing)
        for kind in DEVICES.values()
    )


def is_of_library(error: BaseException) -> bool:
    """Whether the error comes from the communication library of the devices (NCCL)."""
    return any(kind.library in str(error) for kind in DEVICES.values())


@contextmanager
def losses(gpu: str) -> Iterator[None]:
    """Context manager that converts a fatal error into a DeviceLostError naming `gpu`."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise DeviceLostError(f"{gpu} is lost: {reason}. {remedy()}") from error


def label(device: torch.device) -> str:
    """Index and name of a device, with the PCI address if torch reports it. The driver logs Xid
    errors by PCI address.
    """
    own = runtime(device).get_device_properties(device)
    where = ""
    if hasattr(own, "pci_bus_id"):
        where = f", PCI {own.pci_domain_id:04x}:{own.pci_bus_id:02x}:{own.pci_device_id:02x}"
    return f"{kind_of(device).unit} {device.index} ({own.name}{where})"
