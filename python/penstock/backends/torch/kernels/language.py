"""Triton, where it is installed: the CPU device of torch needs none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = tl = None
else:
    # Products and sums as one instruction: from 3.10 on it is not the default.
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
    "tl",
    "triton",
]


def jit(function: Any) -> Any:
    """`triton.jit`; without Triton a function that is never launched."""
    return function if triton is None else triton.jit(function)


def constant(value: Any) -> Any:
    """A number of a module that kernels read."""
    return value if triton is None else tl.constexpr(value)


def jit_with_varying(*names: str) -> Callable[[Any], Any]:
    """`jit` of a function with numbers and addresses that differ from step to step: it is not
    compiled again for those that 16 divides. What lies at such addresses is read one by one.
    """
    if triton is None:
        return jit
    return partial(triton.jit, do_not_specialize=list(names))


def launches(x: Tensor) -> bool:
    """Whether a kernel runs on the device of `x`; the reference runs otherwise. Launches over meta
    tensors, which have no numbers, are recorded (`startup/compiling.py`).
    """
    return bool(x.is_cuda or x.is_meta)


def power(n: int, least: int = 1) -> int:
    """The lowest power of two that is at least `n` and at least `least`."""
    return max(least, 1 << (n - 1).bit_length())


def ceiling(n: int, size: int) -> int:
    """Parts of `size` that `n` has, the last one maybe smaller."""
    return -(-n // size)


@cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of the CPU device, where the interpreter runs, a few."""
    if device.type == "cpu":
        return 4
    return int(torch.cuda.get_device_properties(_gpu(device)).multi_processor_count)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have: 163 KiB on 8.0, 227 on 9.0 and 10.0, 99 on 8.6, 8.9, 12.0."""
    if device.type == "cpu":
        return 163 << 10
    return int(torch.cuda.get_device_properties(_gpu(device)).shared_memory_per_block_optin)


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a GPU."""
    found: tuple[int, int] = torch.cuda.get_device_capability(_gpu(device))
    return found


def hopper(device: torch.device) -> bool:
    """Whether it is of compute capability 9.x; the CPU device is not."""
    return device.type != "cpu" and capability(device)[0] == 9


def _gpu(device: torch.device) -> torch.device | None:
    """The GPU itself; for meta tensors the current one, for which their launches are recorded."""
    return None if device.type == "meta" else device
