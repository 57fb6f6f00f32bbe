"""Triton, if installed: torch's CPU device does not need it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.runtime import runtime
from penstock.config.devices import DEVICES

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = tl = None
else:
    # Fuse products and sums into FMA: from Triton 3.10 on this is no longer the default.
    triton.knobs.language.default_fp_fusion = True

__all__ = [
    "capability",
    "ceiling",
    "constant",
    "hopper",
    "jit",
    "jit_with_varying",
    "launches",
    "multiprocessors",
    "power",
    "shared_memory",
    "takes_kernels",
    "tl",
    "triton",
]


def jit(function: Any) -> Any:
    """`triton.jit`; without Triton, the plain function, which is never launched."""
    return function if triton is None else triton.jit(function)


def constant(value: Any) -> Any:
    """A module-level constant that kernels read."""
    return value if triton is None else tl.constexpr(value)


def jit_with_varying(*names: str) -> Callable[[Any], Any]:
    """`jit` for functions whose arguments `names` vary from step to step. Triton normally compiles
    another version for arguments that are multiples of 16; for these it does not. In return, memory
    at such addresses is read element by element.
    """
    if triton is None:
        return jit
    return partial(triton.jit, do_not_specialize=list(names))


def launches(x: Tensor) -> bool:
    """Whether a kernel runs on the device of `x`; otherwise the torch reference runs. Launches over
    meta tensors (without data) are only recorded (`startup/compiling.py`).
    """
    return bool(x.is_meta or takes_kernels(x.device))


def power(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least `n` and at least `least`."""
    return max(least, 1 << (n - 1).bit_length())


def ceiling(n: int, size: int) -> int:
    """`n / size`, rounded up."""
    return -(-n // size)


@cache
def multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; a small number for a device that Triton does not compile
    for, such as the CPU (Triton's interpreter).
    """
    if _interpreted(device):
        return 4
    return int(_properties(device).multi_processor_count)


@cache
def shared_memory(device: torch.device) -> int:
    """Shared memory in bytes available to a program: 163 KiB on compute capability 8.0, 227 KiB on
    9.0 and 10.0, 99 KiB on 8.6, 8.9 and 12.0.
    """
    if _interpreted(device):
        return 163 << 10
    return int(_properties(device).shared_memory_per_block_optin)


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a GPU; (0, 0) for a device that Triton does not compile for."""
    if not takes_kernels(device) and device.type in DEVICES:
        return (0, 0)
    module, own = _module_and_device(device)
    found: tuple[int, int] = module.get_device_capability(own)
    return found


def hopper(device: torch.device) -> bool:
    """True for compute capability 9.x."""
    return device.type != "cpu" and capability(device)[0] == 9


@cache
def takes_kernels(device: torch.device) -> bool:
    """True if Triton compiles the kernels for the device. Cached, because each launch calls it."""
    return device.type in DEVICES and DEVICES[device.type].triton


def _interpreted(device: torch.device) -> bool:
    return device.type != "meta" and not takes_kernels(device)


def _properties(device: torch.device) -> Any:
    module, own = _module_and_device(device)
    return module.get_device_properties(own)


def _module_and_device(device: torch.device) -> tuple[Any, torch.device | None]:
    """Torch's module for the device, and the device. For meta tensors, whose launches are recorded,
    the module of the first device with kernels, and None for the module's current device.
    """
    if takes_kernels(device):
        return runtime(device), device
    name = next(name for name, kind in DEVICES.items() if kind.triton)
    return runtime(torch.device(name)), None
