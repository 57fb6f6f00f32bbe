"""Detection of a lost GPU by fatal CUDA errors: after one, the process cannot use the
device again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.core import DeviceLostError

MARKS = ("CUDA error", "CUDA driver error", "cuda runtime error", "device lost", "CUBLAS_STATUS_")
"""Substrings of CUDA error messages, including `torch.AcceleratorError`'s."""
PASSING = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "invalid configuration argument")
"""Substrings of errors that are recoverable although `MARKS` matches: only the call fails."""
REMEDY = (
    "This process cannot use it again. The driver writes the reason to the kernel's log as an Xid: "
    "see `dmesg | grep -i xid`, or `journalctl -k | grep -i xid` without the rights for that"
)


def is_loss(error: BaseException) -> bool:
    """True if the error destroyed the CUDA context: an invalid memory access, a GPU that fell off
    the bus, an uncorrectable memory error.
    """
    if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(mark in text for mark in MARKS) and not any(each in text for each in PASSING)


@contextmanager
def losses(gpu: str) -> Iterator[None]:
    """Convert a fatal CUDA error into a DeviceLostError that names `gpu`."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise DeviceLostError(f"{gpu} is lost: {reason}. {REMEDY}") from error


def label(device: torch.device) -> str:
    """Index, name and PCI address of a GPU. Xids are logged with the PCI address."""
    own = torch.cuda.get_device_properties(device)
    where = f"{own.pci_domain_id:04x}:{own.pci_bus_id:02x}:{own.pci_device_id:02x}"
    return f"GPU {device.index} ({own.name}, PCI {where})"
