"""A GPU that is lost: errors of CUDA after which a process cannot use its device any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.core import DeviceLostError

MARKS = ("CUDA error", "CUDA driver error", "cuda runtime error", "device lost", "CUBLAS_STATUS_")
"""Parts of messages. `torch.AcceleratorError` has such a message too."""
PASSING = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "invalid configuration argument")
"""Errors of one call, which the device survives."""
REMEDY = (
    "This process cannot use it again. The driver writes the reason to the kernel's log as an Xid: "
    "see `dmesg | grep -i xid`, or `journalctl -k | grep -i xid` without the rights for that"
)


def is_loss(error: BaseException) -> bool:
    """Whether CUDA's context has ended with the error: a memory access that was wrong, a GPU that
    fell off the bus, memory that cannot be corrected.
    """
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(mark in text for mark in MARKS) and not any(each in text for each in PASSING)


@contextmanager
def losses(gpu: str) -> Iterator[None]:
    """DeviceLostError, which names `gpu`, in place of the error with which it was lost."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise DeviceLostError(f"{gpu} is lost: {reason}. {REMEDY}") from error


def label(device: torch.device) -> str:
    """A GPU as users know it, with its address on the bus, which Xids are logged with."""
    own = torch.cuda.get_device_properties(device)
    where = f"{own.pci_domain_id:04x}:{own.pci_bus_id:02x}:{own.pci_device_id:02x}"
    return f"GPU {device.index} ({own.name}, PCI {where})"
