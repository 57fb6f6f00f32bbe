"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused q, k and v, fused gate and up projections, rope over
part of a head, LongRoPE.
"""

from dataclasses import replace

from penstock.model import common, rope
from penstock.model.errors import ModelError
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import Attention, DecoderSpec, FactorsScaling, Recipe, Rope, WeightRecipes

ROPE_FACTORS = "rope_factors_{}.weight"


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    windows = common.uniform_windows(config)
    spec = common.hf_spec(config, "phi3", windows=windows, part_rope=True)
    weights = hf_recipes(spec)
    modules = ("self_attn.qkv_proj", "mlp.gate_up_proj")
    return spec, _fused(spec, weights, "model.layers.{}.", modules)


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    fields = header.fields("phi3.")
    scaled = fields.get("rope.scaling.type") == "longrope" or _factors("short") in header.shapes
    own = header
    if scaled:
        # The divisors are tensors, so the common keys for the scaling are ignored.
        metadata = {k: v for k, v in header.metadata.items() if k != "phi3.rope.scaling.type"}
        own = replace(header, metadata=metadata)
    spec = common.gguf_spec(own, "phi3", part_rope=True)
    chosen = None
    if scaled:
        spec, chosen = _longrope(header, fields, spec)
    weights = replace(gguf_recipes(spec), rope_factors=chosen)
    return spec, _fused(spec, weights, "blk.{}.", ("attn_qkv", "ffn_up"))


def _factors(kind: str) -> str:
    return ROPE_FACTORS.format(kind)


def _longrope(header: GgufHeader, fields: Fields, spec: DecoderSpec) -> tuple[DecoderSpec, Recipe]:
    """LongRoPE of a GGUF file. As in `rope.from_hf`, the divisors for long sequences are used if
    the served length exceeds the original context.
    """
    original = fields.integer(
        "rope.scaling.original_context_length", 1, rope.LONGEST, default=spec.max_position
    )
    kind = "long" if (header.served or spec.max_position) > original else "short"
    attention = fields.number("rope.scaling.attn_factor", 1e-6, rope.LARGEST_FACTOR, default=1.0)
    own = spec.attention.rope
    if own is None:
        raise ModelError(header.file, "no rope")
    pairs = (own.dims or spec.attention.head_dim) // 2
    if header.shapes.get(_factors(kind)) != (pairs,):
        shape = header.shapes.get(_factors(kind))
        problem = f"tensor {_factors(kind)} has shape {shape}, not ({pairs},)"
        raise ModelError(header.file, problem)
    return _with_rope(spec, replace(own, scaling=FactorsScaling(attention))), Recipe(_factors(kind))


def _with_rope(spec: DecoderSpec, own: Rope) -> DecoderSpec:
    mixer = replace(spec.attention, rope=own)
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(mixer, window=layer.mixer.window)))
    return replace(spec, layers=tuple(layers))


def _fused(
    spec: DecoderSpec, weights: WeightRecipes, prefix: str, modules: tuple[str, str]
) -> WeightRecipes:
    """Recipes for fused tensors: rows of q, k and v in one, rows of gate and up in another."""
    a, width = spec.attention, spec.widths[0]
    qkv, gate_up = modules
    kv = a.kv_heads * a.head_dim
    q = a.heads * a.head_dim
    rows = {
        qkv: {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)},
        gate_up: {"gate": (0, width), "up": (width, 2 * width)},
    }

    def fused(i: int) -> dict[str, Recipe]:
        return {
            role: Recipe(f"{prefix.format(i)}{module}.weight", rows=span)
            for module, spans in rows.items()
            for role, span in spans.items()
        }

    layers = tuple(layer | fused(i) for i, layer in enumerate(weights.layers))
    return replace(weights, layers=layers)
