"""Matrices as they lie on the device, quantised or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BLOCK = 128
"""Rows and columns of an FP8 matrix that share a scale."""
MXFP4_GROUP = 32
"""Inputs of an MXFP4 matrix that share a scale."""
LARGEST_EXPONENT = 128
"""The largest exponent of an MXFP4 scale that the kernels take: they make the numbers of a scale of
2 ** (exponent - 127) by a factor that is larger by the largest exponent of bfloat16."""
_MXFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [outputs, inputs], or one for each expert, as it lies on the device."""

    codes: Tensor
    """[experts, outputs, inputs]: numbers, 8-bit floats (e4m3) or, with half as many columns, bytes
    of two MXFP4 codes, the first in the low bits."""
    scales: Tensor | None = None
    """FP8: f32 of each block of 128 x 128; MXFP4: exponents (uint8) of each 32 inputs."""
    bias: Tensor | None = None
    """[experts, outputs]."""
    form: Literal["plain", "fp8_block", "mxfp4"] = "plain"

    def dense(self) -> Tensor:
        """The numbers, as f32 where they are quantised."""
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
        pairs = torch.stack([self.codes & 15, self.codes >> 4], dim=-1).flatten(-2)
        # The exponent of a float.
        scales = (self.scales.int() << 23).view(torch.float32)
        return table[pairs.long()] * scales.repeat_interleave(MXFP4_GROUP, -1)
