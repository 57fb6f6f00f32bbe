"""Dequantisation of FP8 and MXFP4 codes within Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import capability, jit, tl
from penstock.backends.torch.kernels.matrix import Matrix


def on_device(matrix: Matrix, device: torch.device) -> Tensor:
    """The matrix's codes in the type that kernels on the device read: MXFP4 as 32-bit words; FP8 as
    bytes on GPUs before compute capability 8.9, which have no FP8 type.
    """
    if matrix.form == "plain":
        return matrix.codes
    if matrix.form == "mxfp4":
        return matrix.codes.view(torch.int32)
    native = device.type != "cpu" and capability(device) >= (8, 9)
    return matrix.codes.view(torch.float8_e4m3fn if native else torch.uint8)


@jit
def of_bits(code, dtype: tl.constexpr):
    """Dequantise FP8 (e4m3) codes, given as bytes, without the block's scale."""
    magnitude = (code & 0x7F).to(tl.int32)
    normal = ((magnitude + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    number = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    return tl.where(code > 127, -number, number).to(dtype)


@jit
def of_words(words, exponents, dtype: tl.constexpr):
    """Dequantise MXFP4 codes to numbers [outputs, inputs]: words [outputs, inputs / 8] in the
    layout of `pack_words`, and scale exponents [outputs, inputs / 32], at most LARGEST_EXPONENT.

    The bits of a code, shifted into place, form a float that equals the number times the smallest
    normal float (one half becomes subnormal). One product with a power of two therefore yields the
    number. A thread that holds a word already holds the operands of its matrix product: two
    neighbouring inputs per register, for four places at a distance of 8.
    """
    LEAST: tl.constexpr = 14 if dtype == tl.float16 else 126
    OUTPUTS: tl.constexpr = words.shape[0]
    GROUPS: tl.constexpr = exponents.shape[1]
    first = tl.join(_pair(words, 0, dtype), _pair(words, 2, dtype))
    second = tl.join(_pair(words, 1, dtype), _pair(words, 3, dtype))
    pairs = tl.reshape(tl.join(first, second), [OUTPUTS, GROUPS, 4, 2, 2])
    factor = ((exponents.to(tl.int32) + LEAST) << 23).to(tl.float32, bitcast=True).to(dtype)
    factor = factor[:, :, None, None, None]
    if dtype == tl.float32:
        # Multiplication of a nibble by 2^22 + 2^28 moves its magnitude and sign into place.
        high = ((pairs >> 16) * 0x10400000) & 0x81C00000
        low = ((pairs & 15) * 0x10400000) & 0x81C00000
    else:
        # With the low halves first, ptxas would permute all pairs before and after the product.
        high, low = (pairs >> 16).to(tl.uint16), pairs.to(tl.uint16)
    high = high.to(dtype, bitcast=True) * factor
    low = low.to(dtype, bitcast=True) * factor
    numbers = tl.permute(tl.join(low, high), [0, 1, 3, 4, 2, 5])
    return tl.reshape(numbers, [OUTPUTS, GROUPS * 32])


@jit
def _pair(words, Q: tl.constexpr, dtype: tl.constexpr):
    """The codes at nibble Q of both halves of the words, with the bit layout of 16-bit floats; for
    f32, as plain nibbles.
    """
    if dtype == tl.float32:
        return (words >> 4 * Q) & 0x000F000F
    AT: tl.constexpr = (9 if dtype == tl.float16 else 6) - 4 * Q
    MAGNITUDES: tl.constexpr = (7 << AT + 4 * Q) * 0x10001
    bits = words << AT if AT >= 0 else words >> -AT
    return (bits & MAGNITUDES) | ((words << 12 - 4 * Q) & 0x80008000)
