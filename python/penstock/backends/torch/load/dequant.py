"""Dequantisation of ggml's quantised blocks, vectorised over whole tensors.

Formulas and names match `crates/base/checkpoint/src/dequant.rs`; the same test vectors apply.
"""

from __future__ import annotations

import torch

GGML_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    20: "IQ4_NL",
    30: "BF16",
    39: "MXFP4",
}
"""Element types by their ids in GGUF files."""
BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "IQ4_NL": (32, 18),
    "MXFP4": (32, 17),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Elements and bytes per block of each quantised type."""
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantize(dtype: str, rows: torch.Tensor) -> torch.Tensor:
    """Dequantise whole rows, uint8 [..., bytes per row] in blocks of type `dtype`, to f32 [...,
    elements per row].
    """
    numbers, size = BLOCKS[dtype]
    blocks = rows.reshape(-1, size)
    values = _FORMS[dtype](blocks)
    return values.view(*rows.shape[:-1], rows.shape[-1] // size * numbers)


def mxfp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Dequantise MXFP4 that is stored as two tensors: `codes` [..., groups, 16], with two
    neighbours per byte, and exponents `scales` [..., groups]. Returns f32 [..., groups * 32].
    """
    pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
    values = _table(E2M1, codes)[pairs] * _power(scales).unsqueeze(-1)
    return values.flatten(-2)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The f16 at byte `at` of each block, as a column of f32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """The low nibbles of all bytes of a block, then their high nibbles, along the last
    dimension.
    """
    return torch.cat([codes & 15, codes >> 4], -1)


def _table(values: tuple[float, ...], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)


def _power(exponents: torch.Tensor) -> torch.Tensor:
    return torch.exp2(exponents.float() - 127.0)


def _fifth(bits: torch.Tensor) -> torch.Tensor:
    """The fifth bits of a block's 32 codes, each as 0 or 16, from 4 bytes per block."""
    shifts = torch.arange(8, device=bits.device, dtype=torch.uint8)
    return (((bits.unsqueeze(-1) >> shifts) & 1) << 4).flatten(-2)


def _q8_0(b: torch.Tensor) -> torch.Tensor:
    return _half(b, 0) * b[:, 2:].view(torch.int8).float()


def _q4_0(b: torch.Tensor) -> torch.Tensor:
    return _half(b, 0) * (nibbles(b[:, 2:]).float() - 8.0)


def _q4_1(b: torch.Tensor) -> torch.Tensor:
    return _half(b, 0) * nibbles(b[:, 4:]).float() + _half(b, 2)


def _q5_0(b: torch.Tensor) -> torch.Tensor:
    codes = nibbles(b[:, 6:]) | _fifth(b[:, 2:6])
    return _half(b, 0) * (codes.float() - 16.0)


def _q5_1(b: torch.Tensor) -> torch.Tensor:
    codes = nibbles(b[:, 8:]) | _fifth(b[:, 4:8])
    return _half(b, 0) * codes.float() + _half(b, 2)


def _iq4_nl(b: torch.Tensor) -> torch.Tensor:
    return _half(b, 0) * _table(IQ4_NL, b)[nibbles(b[:, 2:]).long()]


def _mxfp4(b: torch.Tensor) -> torch.Tensor:
    return _power(b[:, :1]) * _table(E2M1, b)[nibbles(b[:, 1:]).long()]


def _k_scales(b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima, [blocks, 8, 1] each, of the 8 sub-blocks in a Q4_K or Q5_K block."""
    low, mid, high = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], -1).float()
    minima = torch.cat([mid & 63, (high >> 4) | (mid >> 6 << 4)], -1).float()
    return (_half(b, 0) * scales).unsqueeze(-1), (_half(b, 2) * minima).unsqueeze(-1)


def _k_codes(b: torch.Tensor) -> torch.Tensor:
    """4-bit codes [blocks, 8, 32] from 128 bytes: each 32 bytes hold two sub-blocks."""
    pairs = b.view(-1, 4, 1, 32)
    return torch.cat([pairs & 15, pairs >> 4], 2).view(-1, 8, 32)


def _q4_k(b: torch.Tensor) -> torch.Tensor:
    scales, minima = _k_scales(b)
    return (scales * _k_codes(b[:, 16:].contiguous()).float() - minima).flatten(1)


def _q5_k(b: torch.Tensor) -> torch.Tensor:
    scales, minima = _k_scales(b)
    shifts = torch.arange(8, device=b.device, dtype=torch.uint8).view(1, 8, 1)
    fifth = ((b[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    codes = _k_codes(b[:, 48:].contiguous()) | fifth
    return (scales * codes.float() - minima).flatten(1)


def _q6_k(b: torch.Tensor) -> torch.Tensor:
    low = b[:, :128].reshape(-1, 2, 2, 32)
    high = b[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = torch.arange(0, 8, 2, device=b.device, dtype=torch.uint8).view(1, 1, 4, 1)
    codes = torch.cat([low & 15, low >> 4], 2) | (((high >> shifts) & 3) << 4)
    scales = b[:, 192:208].contiguous().view(torch.int8).float().view(-1, 16, 1)
    values = (codes.float() - 32.0).view(-1, 16, 16)
    return (_half(b, 208).unsqueeze(-1) * scales * values).flatten(1)


_FORMS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
