"""Bytes of floating-point numbers in the formats of checkpoints, for generated weights."""

import math
import struct
from collections.abc import Callable, Mapping
from statistics import NormalDist

BF16 = "BF16"
F8_E4M3 = "F8_E4M3"
SPREAD_F8 = 64.0
"""Standard deviation of generated 8-bit codes before scaling. The largest code is 448."""
_NAN_F8 = (0x7F, 0xFF)
_MXFP4_SQUARES = (0, 0.25, 1, 2.25, 4, 9, 16, 36)
"""Squares of the magnitudes of E2M1 (OCP Microscaling Formats 1.0, table 5)."""


def _bf16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


FLOATS: Mapping[str, Callable[[float], bytes]] = {
    "F32": lambda value: struct.pack("<f", value),
    "F16": lambda value: struct.pack("<e", value),
    BF16: _bf16,
}


def codebook(dtype: str, spread: float) -> list[bytes]:
    """For each byte of a number, a table from a random byte to its value: the numbers are 256
    quantiles of the normal distribution with standard deviation `spread`. 8-bit floats have the
    deviation SPREAD_F8. Bytes of MXFP4 codes and words of integer codes are uniformly distributed,
    because all their values are valid.
    """
    if dtype == "U8":
        return [bytes(range(256))]
    if dtype == "I32":
        # Odd factors permute the bytes, so that all codes are equally frequent.
        return [bytes(factor * i % 256 for i in range(256)) for factor in (1, 3, 5, 7)]
    quantiles = [NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]
    if dtype == F8_E4M3:
        return [bytes(_nearest_f8(SPREAD_F8 * each) for each in quantiles)]
    numbers = [FLOATS[dtype](spread * each) for each in quantiles]
    return [bytes(column) for column in zip(*numbers, strict=True)]


def code_scale(spread: float, bits: int) -> float:
    """The scale that brings equally frequent codes of `bits` bits to the deviation `spread`."""
    return spread / math.sqrt((4**bits - 1) / 12)


def mxfp4_exponent(spread: float) -> int:
    """The E8M0 scale that brings equally frequent MXFP4 codes next to the deviation `spread`."""
    own = math.sqrt(sum(_MXFP4_SQUARES) / len(_MXFP4_SQUARES))
    return 127 + round(math.log2(spread / own))


def f8_e4m3(code: int) -> float:
    """Value of an 8-bit float (OCP 8-bit Floating Point, E4M3). NaN for two codes."""
    if code in _NAN_F8:
        return math.nan
    exponent, fraction = code >> 3 & 15, code & 7
    size = math.ldexp(8 + fraction, exponent - 10) if exponent else math.ldexp(fraction, -9)
    return -size if code & 128 else size


def _nearest_f8(value: float) -> int:
    codes = (code for code in range(256) if code not in _NAN_F8)
    return min(codes, key=lambda code: abs(f8_e4m3(code) - value))
