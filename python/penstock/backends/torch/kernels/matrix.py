"""Matrices in device memory, quantised or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BLOCK = 128
"""Rows, and columns, of the block of an FP8 matrix that shares a scale."""
MXFP4_GROUP = 32
"""Consecutive inputs of an MXFP4 matrix that share a scale."""
LARGEST_EXPONENT = 128
"""Largest MXFP4 scale exponent that the kernels support. They multiply by 2 ** (exponent - 127 +
126), which must be finite in bfloat16."""
_MXFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [outputs, inputs] in device memory, or one such matrix per expert."""

    codes: Tensor
    """[experts, outputs, inputs]: plain numbers or FP8 (e4m3). MXFP4: half as many columns, bytes
    of two codes each, in the order of `pack_words`."""
    scales: Tensor | None = None
    """FP8: f32 scale per block of 128 x 128. MXFP4: exponent (uint8) per 32 inputs."""
    bias: Tensor | None = None
    """[experts, outputs]; None: no bias."""
    form: Literal["plain", "fp8_block", "mxfp4"] = "plain"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs and inputs."""
        count, outputs, inputs = self.codes.shape
        return count, outputs, 2 * inputs if self.form == "mxfp4" else inputs

    def dense(self) -> Tensor:
        """The matrix dequantised to f32; plain matrices unchanged."""
        if self.form == "plain" or self.scales is None:
            return self.codes
        if self.form == "fp8_block":
            codes = self.codes
            if codes.dtype == torch.uint8:
                codes = codes.view(torch.float8_e4m3fn)
            scales = self.scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
            return codes.float() * scales[..., : codes.shape[-2], : codes.shape[-1]]
        table = torch.tensor(_MXFP4, device=self.codes.device)
        table = torch.cat([table, -table])
        nibbles = torch.stack([self.codes & 15, self.codes >> 4], dim=-1)
        # From (word, half, nibble of the half) to (nibble, word, half).
        groups = nibbles.unflatten(-2, (-1, 4, 2, 2)).movedim((-4, -3), (-2, -1))
        pairs = groups.flatten(-5)
        scales = torch.exp2(self.scales.float() - 127.0)
        return table[pairs.long()] * scales.repeat_interleave(MXFP4_GROUP, -1)


def pack_words(pairs: Tensor) -> Tensor:
    """MXFP4 codes in the order that kernels read. Input: bytes [..., inputs / 2] of two neighbours
    each, the first in the low bits.

    A group of 32 inputs becomes four 32-bit words. Nibble q of the low half of word t is input 8 q
    + 2 t of the group; the same nibble of the high half is the next input. This matches the operand
    layout of a matrix product, whose tile is 16 inputs wide: a thread holds two neighbours, and the
    two inputs 8 further on.
    """
    first, second, third, fourth = pairs.unflatten(-1, (-1, 4, 4)).unbind(-2)
    low = (first & 15) | (second << 4), (third & 15) | (fourth << 4)
    high = (first >> 4) | (second & 240), (third >> 4) | (fourth & 240)
    return torch.stack([*low, *high], -1).flatten(-3)
