"""Measures the memory bandwidth of a GPU: many Triton programs sum many words."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import jit, multiprocessors, tl

BLOCKS = (1024, 4096)
"""Numbers of words to try that a program reads at once."""
PROGRAMS = (4, 16)
"""Numbers of programs per multiprocessor to try. At most eight run at once, so 32 to 256 KiB are in
flight.
"""
_CLOCK, _WIDTH = 36, 37
"""CUDA attributes CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE in kHz, and ..._GLOBAL_MEMORY_BUS_WIDTH in
bits.
"""


def sum_triton(words: Tensor, block: int, programs: int) -> Tensor:
    """Partial sums of the 64-bit `words` [n], one for each program. `block` must divide n, and n is
    at most 2^30.
    """
    count = programs * multiprocessors(words.device)
    parts = torch.empty(count, dtype=torch.int64, device=words.device)
    _sum[(count,)](parts, words, len(words), BLOCK=block, num_warps=8)
    return parts


def sum_reference(words: Tensor, block: int, programs: int) -> Tensor:
    count = programs * multiprocessors(words.device)
    blocks = words.view(-1, block).sum(1)
    parts = torch.zeros(count, dtype=torch.int64, device=words.device)
    return parts.index_add_(0, torch.arange(len(blocks), device=words.device) % count, blocks)


@jit
def _sum(out, words, count, BLOCK: tl.constexpr):  # noqa: N803 - a constant of compilation
    # Programs that run at the same time read adjacent blocks.
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int64)
    for first in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        total += tl.load(words + first + at)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def datasheet(driver: Any = None, device: int = 0) -> float | None:
    """Bytes per second by the datasheet: clock and bus width of the device memory, with two bits
    per clock and line. None if the driver does not report them.
    """
    try:
        driver = driver or ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, found = ctypes.c_int(), []
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device):
        return None
    for attribute in (_CLOCK, _WIDTH):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) or value.value <= 0:
            return None
        found.append(value.value)
    clock, width = found
    return 2 * clock * 1e3 * width / 8
