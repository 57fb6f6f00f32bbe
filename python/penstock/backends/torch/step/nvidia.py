"""Checks whether torch can use an NVIDIA GPU, and finds the reason if it cannot."""

from __future__ import annotations

import torch

from penstock.backends.torch.device_lost import label
from penstock.core import PenstockError

OLD_DRIVER = "580"
"""First driver version for CUDA 13, with which PyPI's torch is built."""
LEAST_CAPABILITY = (8, 0)
"""Minimum compute capability: the first one with bfloat16 matrix products."""


def check(device: torch.device) -> None:
    """Raise PenstockError, with the reason and the remedy, if the GPU cannot be used."""
    check_driver()
    if device.index < torch.cuda.device_count():
        check_capability(device)


def check_driver() -> None:
    """Raise PenstockError if torch finds no GPU, with the reason: no driver, an old driver, or no
    visible GPU.
    """
    if torch.cuda.is_available():
        return
    built = torch.version.cuda
    if built is None:
        raise PenstockError("--device cuda: this torch is built without CUDA; install another one")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
    else:
        reason = "no GPU is visible; see CUDA_VISIBLE_DEVICES"
    raise PenstockError(
        f"--device cuda: {reason} (torch {torch.__version__} is built for CUDA {built}; CUDA 13 "
        f"needs a driver from {OLD_DRIVER} on, shown by nvidia-smi)"
    )


def check_capability(device: torch.device) -> None:
    """Raise PenstockError if the kernels do not support the GPU's compute capability."""
    found = torch.cuda.get_device_capability(device)
    if found < LEAST_CAPABILITY:
        own, least = (".".join(map(str, each)) for each in (found, LEAST_CAPABILITY))
        raise PenstockError(
            f"--device cuda: {label(device)} has compute capability {own}; the kernels need "
            f"{least} (Ampere, such as A100 and RTX 30) or later. Choose another GPU by "
            "CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
