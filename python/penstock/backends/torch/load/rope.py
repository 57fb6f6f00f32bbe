"""Rotary position embedding: tables of cosines and sines, computed like
`crates/compute/decoder/src/rope.rs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.model.spec import (
    FactorsScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    Rope,
    YarnScaling,
)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotation table: `cos` and `sin` [positions, pairs] in f32."""

    cos: Tensor
    sin: Tensor


def rotation(rope: Rope, dims: int, positions: int, stored: Tensor | None) -> Rotation:
    """Table of a rotation over `dims` elements. `positions`: number of rows of the table. `stored`:
    frequency divisors from the checkpoint, for FactorsScaling.
    """
    frequencies = _frequencies(rope, dims, stored)
    at = torch.arange(positions, dtype=torch.float32).unsqueeze(1)
    # The product is rounded to f32, as the models' reference implementations do.
    angles = (at * frequencies).double()
    factor = _attention_factor(rope)
    return Rotation(angles.cos().float() * factor, angles.sin().float() * factor)


def _attention_factor(rope: Rope) -> float:
    if isinstance(rope.scaling, (YarnScaling, LongropeScaling, FactorsScaling)):
        factor = rope.scaling.attention_factor
        return 1.0 if factor is None else factor
    return 1.0


def _frequencies(rope: Rope, dims: int, stored: Tensor | None) -> Tensor:
    scaling = rope.scaling
    exponents = torch.arange(0, dims, 2, dtype=torch.float32) / dims
    base = 1.0 / torch.tensor(rope.theta, dtype=torch.float32).pow(exponents)
    if isinstance(scaling, YarnScaling):
        return _yarn(rope.theta, dims, scaling)
    if isinstance(scaling, LinearScaling):
        return base / scaling.factor
    if isinstance(scaling, LongropeScaling):
        return base / torch.tensor(scaling.divisors, dtype=torch.float32)
    if isinstance(scaling, FactorsScaling):
        # Meta tensors (recorded launches) have no data.
        return base if stored is None or stored.is_meta else base / stored.to(base.device)
    if isinstance(scaling, Llama3Scaling):
        return _llama3(base, scaling)
    return base


def _llama3(base: Tensor, scaling: Llama3Scaling) -> Tensor:
    wide = base.double()
    ratio = scaling.original_max_position * wide / (2.0 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    if span == 0.0:  # Llama 4 Scout: the ramp has no width.
        ramp = (ratio >= scaling.high_freq_factor).double()
    else:
        ramp = ((ratio - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return ((1.0 - ramp) * wide / scaling.factor + ramp * wide).float()


def _yarn(theta: float, dims: int, scaling: YarnScaling) -> Tensor:
    """YaRN frequencies: a ramp from unscaled to fully scaled pairs."""

    def pair(turns: float) -> float:
        wavelength = scaling.original_max_position / (2.0 * math.pi * turns)
        return dims * math.log(wavelength) / (2.0 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if not scaling.fractional:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, dims - 1.0)
    if low == high:
        high += 0.001
    at = torch.arange(dims // 2, dtype=torch.float64)
    ramp = ((at - low) / (high - low)).clamp(0.0, 1.0)
    plain = torch.tensor(theta, dtype=torch.float64).pow(-2.0 * at / dims)
    return (plain * (ramp / scaling.factor + 1.0 - ramp)).float()
