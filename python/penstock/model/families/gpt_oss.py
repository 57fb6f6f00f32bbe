"""gpt-oss: alternating windowed and full layers, attention sinks, YaRN, experts with biases and a
clamped SwiGLU.
"""

from dataclasses import replace

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.gguf import GgufHeader
from penstock.model.quantization import refusal, settings
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import (
    Attention,
    Clamp,
    DecoderSpec,
    Experts,
    Mlp,
    Recipe,
    Router,
    WeightRecipes,
    YarnScaling,
)

DEFAULT_HEAD_DIM = 64
ALPHA, LIMIT, OFFSET = 1.702, 7.0, 1.0
ROUTER = Router("softmax", after_choice=True, bias=True)
LARGEST_LIMIT = 1e6
PERIOD = 2
"""Layers alternate: the first has a window, the second has full attention."""


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    if not config.flag("attention_bias", default=True):
        raise config.refuse("attention_bias", "true")
    count = experts.count(config)
    clamp = Clamp(
        limit=config.number("swiglu_limit", 1e-6, LARGEST_LIMIT, default=LIMIT),
        alpha=config.number("swiglu_alpha", 1e-6, LARGEST_LIMIT, default=ALPHA),
        offset=OFFSET,
    )
    expert = replace(common.dense(config, bias=True), clamp=clamp)
    mixture = Experts(count, config.integer("num_experts_per_tok", 1, count), expert, ROUTER)
    codes = _are_codes(config)
    spec = common.hf_spec(
        config,
        "gpt-oss",
        quantised=codes,
        qkv_bias=True,
        out_bias=True,
        windows=_windows(config),
        default_head_dim=DEFAULT_HEAD_DIM,
        feed_forwards=(mixture,) * common.hf_layers(config),
    )
    spec = _with_sinks(spec)
    return spec, _hf_recipes(spec, expert.intermediate, codes=codes)


def _are_codes(config: Fields) -> bool:
    """Whether experts are stored as MXFP4 codes."""
    quantised = settings(config, {})
    if quantised is not None and quantised.get("quant_method") != "mxfp4":
        raise refusal(config)
    return quantised is not None


def _windows(config: Fields) -> tuple[int | None, ...]:
    layers = common.hf_layers(config)
    window = config.integer("sliding_window", 1, common.LONGEST_CONTEXT)
    default = [common.LAYER_TYPES[i % PERIOD] for i in range(layers)]
    return common.typed_windows(config, window, default)


def _in_turn(window: int, layers: int) -> tuple[int | None, ...]:
    return tuple(window if i % PERIOD == 0 else None for i in range(layers))


def _with_sinks(spec: DecoderSpec) -> DecoderSpec:
    def mixer(own: object) -> Attention:
        assert isinstance(own, Attention)
        return replace(own, sinks=True)

    layers = tuple(replace(layer, mixer=mixer(layer.mixer)) for layer in spec.layers)
    return replace(spec, layers=layers)


def _hf_recipes(spec: DecoderSpec, width: int, *, codes: bool) -> WeightRecipes:
    """Experts are stacked in one tensor, as [inputs, outputs], or as MXFP4 codes of [outputs,
    inputs]. The outputs of gate and up are interleaved.
    """
    weights = hf_recipes(spec)

    def matrix(name: str) -> Recipe:
        if codes:
            return Recipe(f"{name}_blocks", scales=f"{name}_scales")
        return Recipe(name, transposed=True)

    def half(fused: Recipe, rows: tuple[int, int]) -> Recipe:
        return replace(fused, rows=rows, interleaved=2 * width)

    def layer(i: int, roles: dict[str, Recipe]) -> dict[str, Recipe]:
        at, gate, up = f"model.layers.{i}.", (0, width), (width, 2 * width)
        experts = f"{at}mlp.experts."
        fused, bias = matrix(f"{experts}gate_up_proj"), Recipe(f"{experts}gate_up_proj_bias")
        return roles | {
            "sinks": Recipe(f"{at}self_attn.sinks"),
            "router": Recipe(f"{at}mlp.router.weight"),
            "router_bias": Recipe(f"{at}mlp.router.bias"),
            "gate": half(fused, gate),
            "up": half(fused, up),
            "down": matrix(f"{experts}down_proj"),
            "gate_bias": half(bias, gate),
            "up_bias": half(bias, up),
            "down_bias": Recipe(f"{experts}down_proj_bias"),
        }

    return replace(weights, layers=tuple(layer(i, own) for i, own in enumerate(weights.layers)))


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """Spec and recipes of a GGUF file. The clamp of the activation has no keys in it. The ramp of
    YaRN ends between pairs, as in transformers; GGUF has no key for that, and llama.cpp rounds the
    ends.
    """
    fields = header.fields("gpt-oss.")
    width = fields.integer("expert_feed_forward_length", 1, common.WIDEST)
    expert = Mlp("gated", width, "silu", bias=True, clamp=Clamp(LIMIT, ALPHA, OFFSET))
    mixture = experts.gguf(header, "gpt-oss", normalise=False)
    mixture = replace(mixture, expert=expert, router=ROUTER)
    spec = _with_sinks(common.gguf_spec(header, "gpt-oss", feed_forward=mixture))
    window = fields.integer("attention.sliding_window", 1, common.LONGEST_CONTEXT)
    windows = _in_turn(window, len(spec.layers))
    layers = []
    for layer, own in zip(spec.layers, windows, strict=True):
        mixer = layer.mixer
        assert isinstance(mixer, Attention)
        assert mixer.rope is not None
        scaling = mixer.rope.scaling
        if isinstance(scaling, YarnScaling):
            scaling = replace(scaling, fractional=True)
        rope = replace(mixer.rope, scaling=scaling)
        layers.append(replace(layer, mixer=replace(mixer, window=own, rope=rope)))
    spec = replace(spec, layers=tuple(layers))
    weights = gguf_recipes(spec)
    return spec, replace(
        weights,
        layers=tuple(
            roles
            | {
                "sinks": Recipe(f"blk.{i}.attn_sinks.weight"),
                "feed_forward_norm": Recipe(f"blk.{i}.post_attention_norm.weight"),
            }
            for i, roles in enumerate(weights.layers)
        ),
    )
