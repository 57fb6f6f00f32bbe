"""Numbers of codes, within kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.backends.torch.kernels.language import capability, jit, tl
from penstock.backends.torch.kernels.matrix import Matrix


def on_device(matrix: Matrix, device: torch.device) -> Tensor:
    """Codes in the form that the device reads: words of MXFP4; 8-bit floats are bytes before 8.9,
    which has no such numbers.
    """
    if matrix.form == "plain":
        return matrix.codes
    if matrix.form == "mxfp4":
        return matrix.codes.view(torch.int32)
    native = device.type != "cpu" and capability(device) >= (8, 9)
    return matrix.codes.view(torch.float8_e4m3fn if native else torch.uint8)


@jit
def of_bits(code, dtype: tl.constexpr):
    """Numbers of e4m3 codes."""
    magnitude = (code & 0x7F).to(tl.int32)
    normal = ((magnitude + (120 << 3)) << 20).to(tl.float32, bitcast=True)
    number = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    return tl.where(code > 127, -number, number).to(dtype)


@jit
def of_words(words, exponents, dtype: tl.constexpr):
    """Numbers [outputs, inputs] of MXFP4 codes in words [outputs, inputs / 8] as `pack_words` has
    them, and of their scales' exponents [outputs, inputs / 32], none above LARGEST_EXPONENT.

    A code's bits are those of a float of its number times the least normal one, also of one half,
    whose float is subnormal: a product with a power of two gives the number at once. A thread that
    has a word has what it multiplies: two inputs side by side in a register, of four places at a
    distance of 8.
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
        # A nibble times 2^22 + 2^28: the magnitude and the sign in their places.
        high = ((pairs >> 16) * 0x10400000) & 0x81C00000
        low = ((pairs & 15) * 0x10400000) & 0x81C00000
    else:
        # ptxas turns all pairs before and after the product, if the lower ones come first.
        high, low = (pairs >> 16).to(tl.uint16), pairs.to(tl.uint16)
    high = high.to(dtype, bitcast=True) * factor
    low = low.to(dtype, bitcast=True) * factor
    numbers = tl.permute(tl.join(low, high), [0, 1, 3, 4, 2, 5])
    return tl.reshape(numbers, [OUTPUTS, GROUPS * 32])


@jit
def _pair(words, Q: tl.constexpr, dtype: tl.constexpr):
    """The codes at nibble Q of both halves of the words, as 16-bit floats have their bits, or as
    nibbles for f32.
    """
    if dtype == tl.float32:
        return (words >> 4 * Q) & 0x000F000F
    AT: tl.constexpr = (9 if dtype == tl.float16 else 6) - 4 * Q
    MAGNITUDES: tl.constexpr = (7 << AT + 4 * Q) * 0x10001
    bits = words << AT if AT >= 0 else words >> -AT
    return (bits & MAGNITUDES) | ((words << 12 - 4 * Q) & 0x80008000)
