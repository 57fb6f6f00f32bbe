"""KV memory: one tensor per KV group, with blocks as the outermost dimension.

Grouped-query attention: [block][KV head][layer][K, V][token][dim]. Latent attention:
[block][layer][token][latent and rope key]. A rank's part of a block is contiguous, and so is each
KV head's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and type of a block of one KV group on one rank."""

    layers: int
    kv_heads: int
    """1 for latent attention."""
    width: int
    """Elements per key, or per token for latent attention."""
    latent: bool
    block_size: int
    """Tokens per block."""
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        if self.latent:
            return (self.layers, self.block_size, self.width)
        return (self.kv_heads, self.layers, 2, self.block_size, self.width)

    @property
    def block_bytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


class Pool:
    """The blocks of one KV group. The memory is uninitialised: attention reads only tokens that
    were written.
    """

    def __init__(self, layout: Layout, blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.blocks = torch.empty(blocks, *layout.shape, dtype=layout.dtype, device=device)

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views [blocks, heads, tokens, dim] of a layer, by its index in the group."""
        return self.blocks[:, :, layer, 0], self.blocks[:, :, layer, 1]

    def latents(self, layer: int) -> Tensor:
        """View [blocks, tokens, width] of a layer, by its index in the group."""
        return self.blocks[:, layer]


def make_pools(
    layouts: Sequence[Layout], blocks: Sequence[int], device: torch.device
) -> tuple[Pool, ...]:
    return tuple(Pool(*each, device) for each in zip(layouts, blocks, strict=True))
