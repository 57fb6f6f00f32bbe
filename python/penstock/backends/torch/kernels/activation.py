"""Activation of a gated feed-forward: combines the outputs of its gate and up projections, which
are side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from penstock.backends.torch.kernels.language import ceiling, jit, launches, tl

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Activation:
    """`activation(gate) * up`, or "clamped" (gpt-oss): `(up + offset) * gate * sigmoid(alpha *
    gate)`, where gate is at most `limit`, and up is between `-limit` and `limit`.
    """

    kind: Literal["silu", "gelu_tanh", "gelu", "clamped"]
    limit: float = 0.0
    alpha: float = 0.0
    offset: float = 0.0


def activate(gate_up: Tensor, activation: Activation) -> Tensor:
    """Activated rows [rows, width] of `gate_up` [rows, 2 * width]; the gate is the first half."""
    if launches(gate_up):
        return activate_triton(gate_up, activation)
    return activate_reference(gate_up, activation)


def activate_reference(gate_up: Tensor, activation: Activation) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    if activation.kind == "clamped":
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(-activation.limit, activation.limit) + activation.offset
        out = gate * torch.sigmoid(activation.alpha * gate) * up
    elif activation.kind == "silu":
        out = functional.silu(gate) * up
    else:
        tanh = activation.kind == "gelu_tanh"
        out = functional.gelu(gate, approximate="tanh" if tanh else "none") * up
    return out.to(gate_up.dtype)


def activate_triton(gate_up: Tensor, activation: Activation) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _activate[(rows, ceiling(width, _BLOCK))](
            gate_up,
            out,
            gate_up.stride(0),
            width,
            activation.limit,
            activation.alpha,
            activation.offset,
            KIND=activation.kind,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return out


@jit
def activated(gate, up, limit, alpha, offset, KIND: tl.constexpr):
    """Combine gate and up, in f32."""
    if KIND == "clamped":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + offset
        gate = gate / (1.0 + tl.exp(-alpha * gate))
    elif KIND == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif KIND == "gelu":
        gate = gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # The identity used: 0.5 * (1 + tanh(u)) = 1 / (1 + e^(-2u))
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-inner))
    return gate * up


@jit
def _activate(
    gate_up, out, stride, width, limit, alpha, offset, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = at < width
    gate = tl.load(gate_up + row * stride + at, mask=own, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + at, mask=own, other=0.0).to(tl.float32)
    tl.store(
        out + row * width + at,
        activated(gate, up, limit, alpha, offset, KIND).to(out.dtype.element_ty),
        mask=own,
    )
