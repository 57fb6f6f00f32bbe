"""KV groups: layers with the same attention mask share block tables. Layers without keys and values
are in no group.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.spec import Attention, CachedAttention, DecoderSpec


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers of one KV group."""

    layers: tuple[int, ...]
    """The rank's layers, as indices into the whole model; may be empty."""
    window: int | None
    """Number of tokens that a token attends to, itself included; None for all."""
    chunked: bool
    """The window does not slide: a token attends only to its own chunk of this size."""


def kv_groups(spec: DecoderSpec, own: range | None = None) -> tuple[KvLayers, ...]:
    """KV groups in the order of their first layers in the whole model, with the layers in `own`;
    None for all layers.
    """
    found: dict[tuple[int | None, bool], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mixer, CachedAttention):
            layers = found.setdefault(_mask(layer.mixer), [])
            layers += [index] if own is None or index in own else []
    return tuple(KvLayers(tuple(layers), *mask) for mask, layers in found.items())


def _mask(mixer: CachedAttention) -> tuple[int | None, bool]:
    """Window or chunk size, and whether it is a chunk."""
    if not isinstance(mixer, Attention):
        return None, False
    chunked = mixer.window is None and mixer.chunk is not None
    return mixer.chunk if chunked else mixer.window, chunked
