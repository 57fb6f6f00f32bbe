"""CRC-64/NVME of memory: what a disk tier verifies, without a copy to the host.

The remainder of a text is linear in its words. Each lane of a program takes every `lanes`-th word
of a segment and moves its remainder past as many words at a time, by tables; then the lanes are
moved to the segment's end and added, then the segments to the memory's end, on the host the
memories.
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
"""Reflected."""
ONES = (1 << 64) - 1
_LANES, _STEPS = 8, 4
"""Powers of two: words that are read at once, and how often in a segment."""
_SEGMENTS = 12
"""The most segments of a memory, as a power of two: 128 MiB."""


def crc64(memories: Sequence[Tensor]) -> int:
    """The checksum of contiguous memories, one after another; each has a multiple of 8 bytes."""
    crc = ONES
    for memory, added in zip(memories, remainders(memories).tolist(), strict=True):
        crc = _moved(crc, memory.nbytes) ^ (added & ONES)
    return crc ^ ONES


def remainders(memories: Sequence[Tensor]) -> Tensor:
    """What each memory adds to a checksum, as the integers that torch has."""
    if memories and launches(memories[0]):
        return remainders_triton(memories)
    return remainders_reference(memories)


def remainders_reference(memories: Sequence[Tensor]) -> Tensor:
    words = [memory.view(-1).view(torch.int64) for memory in memories]
    return torch.stack([_remainder(each) for each in words])


def _remainder(words: Tensor) -> Tensor:
    """Halves are joined until one is left."""
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
    # The first segment begins before the memory where that has no whole number of them: with zeros,
    # which change nothing.
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
    # A remainder goes past its own last word too.
    tl.store(out, tl.xor_sum(_past(state, tables), 0))


@jit
def _to_end(state, left, tables, BITS: tl.constexpr):
    # The table of bit b goes past 2^b times what that of bit 0 does.
    for bit in tl.static_range(BITS):
        state = tl.where((left >> bit) & 1 == 1, _past(state, tables + bit * 2048), state)
    return state


@jit
def _past(state, table):
    found = tl.zeros_like(state)
    for byte in tl.static_range(8):
        found ^= tl.load(table + byte * 256 + ((state >> (8 * byte)) & 255))
    return found


# Remainders as 64 bits -------------------------------------------------------------------------


def _moved(remainder: int, count: int) -> int:
    """A remainder `count` bytes further on."""
    return _applied(_columns(count), remainder)


def _applied(columns: tuple[int, ...], bits: int) -> int:
    found = 0
    for at, column in enumerate(columns):
        if bits >> at & 1:
            found ^= column
    return found


@cache
def _columns(count: int) -> tuple[int, ...]:
    """What becomes of each bit of a remainder, `count` bytes further on."""
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
    """[power of two, byte, value]: what the bytes of a remainder become so many words further."""
    found = []
    for exponent in range(_LANES + _STEPS + _SEGMENTS):
        columns = _columns(8 << exponent)
        found.append([_values(columns[at : at + 8]) for at in range(0, 64, 8)])
    return torch.tensor(found, dtype=torch.int64, device=device)


def _values(columns: tuple[int, ...]) -> list[int]:
    """What becomes of each value of a byte, as the integers that torch has."""
    found = [0]
    for column in columns:
        found += [value ^ column for value in found]
    return [value - (1 << 64) if value >> 63 else value for value in found]
