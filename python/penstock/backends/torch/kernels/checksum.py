"""CRC-64/NVME of device memory, to verify loads from a disk tier on the GPU, without a copy to the
host.

The CRC remainder is linear in the input words. Each lane of a program takes every `lanes`-th word
of a segment; tables advance its remainder by that many words at a time. The lanes' remainders are
then advanced to the end of the segment and XORed. The segments' remainders are likewise advanced to
the end of the memory and XORed. The host combines the remainders of several memories.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import (
    ceiling,
    jit,
    jit_with_varying,
    launches,
    power,
    tl,
)

POLYNOMIAL = 0x9A6C9329AC4BC9B5
"""Polynomial of CRC-64/NVME, bit-reflected."""
ONES = (1 << 64) - 1
_LANES, _STEPS = 8, 4
"""Log2 of the 64-bit words that a program reads at once, and of its reads per segment."""
_SEGMENTS = 12
"""Log2 of the maximum number of segments per memory, which may therefore have 128 MiB."""


def crc64(memories: Sequence[Tensor]) -> int:
    """CRC of the concatenation of contiguous memories; each size must be a multiple of 8 bytes."""
    crc = ONES
    for memory, added in zip(memories, remainders(memories).tolist(), strict=True):
        crc = _moved(crc, memory.nbytes) ^ (added & ONES)
    return crc ^ ONES


def remainders(memories: Sequence[Tensor]) -> Tensor:
    """[memories] int64: the CRC remainder of each memory alone, its 64 bits as a signed integer."""
    if memories and launches(memories[0]):
        return remainders_triton(memories)
    return remainders_reference(memories)


def remainders_reference(memories: Sequence[Tensor]) -> Tensor:
    words = [memory.view(-1).view(torch.int64) for memory in memories]
    return torch.stack([_remainder(each) for each in words])


def _remainder(words: Tensor) -> Tensor:
    """CRC remainder of `words` [n] int64. Halves are combined until one remainder is left."""
    tables = _tables(words.device)
    state = _looked_up(words, tables[0])
    for table in tables:
        if len(state) < 2:
            break
        if len(state) % 2:
            state = torch.cat([state.new_zeros(1), state])
        state = _looked_up(state[::2], table) ^ state[1::2]
    return state.sum()


def _looked_up(state: Tensor, table: Tensor) -> Tensor:
    found = torch.zeros_like(state)
    for byte in range(8):
        found ^= table[byte][(state >> 8 * byte) & 255]
    return found


def remainders_triton(memories: Sequence[Tensor]) -> Tensor:
    words = [memory.view(-1).view(torch.int64) for memory in memories]
    tables = _tables(words[0].device)
    found = torch.zeros(len(words), dtype=torch.int64, device=words[0].device)
    for at, each in enumerate(words):
        count = ceiling(len(each), 1 << (_LANES + _STEPS))
        if count > 1 << _SEGMENTS:
            raise ValueError(f"a memory of {each.nbytes} bytes is too large for one checksum")
        parts = torch.empty(count, dtype=torch.int64, device=each.device)
        if count:
            _segments[(count,)](
                parts, each, tables, len(each), LANES=_LANES, STEPS=_STEPS, num_warps=4
            )
            bits = power(count).bit_length() - 1
            _joined[(1,)](
                found[at:], parts, tables, count, FIRST=_LANES + _STEPS, BITS=bits, num_warps=4
            )
    return found


@jit
def _segments(out, data, tables, count, LANES: tl.constexpr, STEPS: tl.constexpr):
    # The first segment may begin before the memory. That part is padded with zeros, which do not
    # change the remainder.
    lane = tl.arange(0, 1 << LANES)
    first = count - ((tl.num_programs(0) - tl.program_id(0)) << (LANES + STEPS))
    state = tl.zeros([1 << LANES], tl.int64)
    for step in range(1 << STEPS):
        at = first + (step << LANES) + lane
        word = tl.load(data + at, mask=at >= 0, other=0)
        state = _past(state, tables + LANES * 2048) ^ word
    state = _to_end(state, (1 << LANES) - 1 - lane, tables, BITS=LANES)
    tl.store(out + tl.program_id(0), tl.xor_sum(state, 0))


@jit_with_varying("out")
def _joined(out, parts, tables, count, FIRST: tl.constexpr, BITS: tl.constexpr):
    at = tl.arange(0, 1 << BITS)
    state = tl.load(parts + at, mask=at < count, other=0)
    state = _to_end(state, tl.maximum(count - 1 - at, 0), tables + FIRST * 2048, BITS=BITS)
    # Advance the remainder past its own last word too.
    tl.store(out, tl.xor_sum(_past(state, tables), 0))


@jit
def _to_end(state, left, tables, BITS: tl.constexpr):
    # The table of bit b advances 2^b times as far as the table of bit 0.
    for bit in tl.static_range(BITS):
        state = tl.where((left >> bit) & 1 == 1, _past(state, tables + bit * 2048), state)
    return state


@jit
def _past(state, table):
    found = tl.zeros_like(state)
    for byte in tl.static_range(8):
        found ^= tl.load(table + byte * 256 + ((state >> (8 * byte)) & 255))
    return found


# CRC remainders as 64-bit integers on the host ---------------------------------------------------


def _moved(remainder: int, count: int) -> int:
    """The remainder, advanced by `count` zero bytes."""
    return _applied(_columns(count), remainder)


def _applied(columns: tuple[int, ...], bits: int) -> int:
    found = 0
    for at, column in enumerate(columns):
        if bits >> at & 1:
            found ^= column
    return found


@cache
def _columns(count: int) -> tuple[int, ...]:
    """For each bit of a remainder: its image after `count` zero bytes."""
    if count == 0:
        return tuple(1 << at for at in range(64))
    half = _columns(count // 2)
    twice = tuple(_applied(half, column) for column in half)
    return tuple(map(_past_byte, twice)) if count % 2 else twice


def _past_byte(bits: int) -> int:
    for _ in range(8):
        bits = bits >> 1 ^ (POLYNOMIAL if bits & 1 else 0)
    return bits


@cache
def _tables(device: torch.device) -> Tensor:
    """[exponent, byte, value]: the image of each value of each byte of a remainder after 2 **
    exponent words of zeros.
    """
    found = []
    for exponent in range(_LANES + _STEPS + _SEGMENTS):
        columns = _columns(8 << exponent)
        found.append([_values(columns[at : at + 8]) for at in range(0, 64, 8)])
    return torch.tensor(found, dtype=torch.int64, device=device)


def _values(columns: tuple[int, ...]) -> list[int]:
    """The images of all 256 values of a byte, given the images `columns` of its bits, as signed
    64-bit integers.
    """
    found = [0]
    for column in columns:
        found += [value ^ column for value in found]
    return [value - (1 << 64) if value >> 63 else value for value in found]
