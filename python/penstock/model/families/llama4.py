"""Llama 4's text model (Scout and Maverick, or MobileLLM-R1 without experts): chunked attention
with rope in most layers; full attention without rope, with queries scaled by position, in the
others. Norms follow the rotation. Each token uses one routed expert and a shared one.
"""

from dataclasses import replace

from penstock.model import common, experts
from penstock.model.fields import Fields
from penstock.model.files import tensor_names
from penstock.model.gguf import GgufHeader
from penstock.model.recipes import gguf_recipes, hf_recipes
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    Experts,
    FeedForward,
    Layer,
    Mlp,
    Recipe,
    Router,
    Temperature,
    WeightRecipes,
)

CHUNK = 8192
TEMPERATURE = Temperature(8192.0, 0.1)
WITHOUT_NORMS = 128
"""Number of experts of Maverick, the only published model without norms of queries and keys. GGUF
files do not state this property, so Maverick is recognised by this number.
"""
ROUTER = Router("sigmoid", after_choice=True, weight_on_input=True)
TEXT, OUTER = "model.", "language_model.model."
"""Prefixes of tensor names: of text-only models, and of published models, which also take
images.
"""
MODULES = {
    "router": "feed_forward.router",
    # Stacked tensors: see `_stacked`.
    "gate": "",
    "up": "",
    "down": "",
    "shared_gate": "feed_forward.shared_expert.gate_proj",
    "shared_up": "feed_forward.shared_expert.up_proj",
    "shared_down": "feed_forward.shared_expert.down_proj",
}
Mapped = tuple[DecoderSpec, WeightRecipes]


def from_hf(config: Fields) -> Mapped:
    return _from_hf(config, TEXT)


def from_hf_text(config: Fields) -> Mapped:
    """The text part of a model that also takes images. Images are not supported."""
    text = config.within("text_config")
    if text is None:
        raise config.refuse("text_config", "an object")
    common.refuse_quantised(config)
    newer = "model.language_model.embed_tokens.weight" in tensor_names(config.file.parent)
    return _from_hf(text, "model.language_model." if newer else OUTER)


def _from_hf(config: Fields, prefix: str) -> Mapped:
    layers = common.hf_layers(config)
    spec = common.hf_spec(
        config,
        "llama4",
        default_head_dim=128,
        feed_forwards=_hf_feed_forwards(config, layers),
    )
    eps = spec.final_norm.eps if config.flag("use_qk_norm", default=True) else None
    chunk = config.integer("attention_chunk_size", 1, common.LONGEST_CONTEXT, default=CHUNK)
    temperature = None
    if config.flag("attn_temperature_tuning", default=True):
        temperature = Temperature(
            config.number("floor_scale", 1.0, 1e9, default=TEMPERATURE.floor),
            config.number("attn_scale", 0.0, 1e6, default=TEMPERATURE.scale),
        )
    rotating = common.rotating_layers(config)
    spec = _with_chunks(spec, rotating, chunk=chunk, eps=eps, temperature=temperature)
    return spec, _hf_recipes(spec, prefix)


def _hf_feed_forwards(config: Fields, layers: int) -> tuple[FeedForward, ...]:
    """Feed-forward of each layer. The width of dense layers has a separate key; Llama's key has the
    width of the experts.
    """
    mixed = _layers_of_experts(config, layers)
    plain = experted = None
    if len(mixed) < layers:
        width = config.integer("intermediate_size_mlp", 1, common.WIDEST, default=16384)
        plain = Mlp("gated", width, "silu")
    if mixed:
        count = experts.count(config)
        experted = _mixture(
            count, config.integer("num_experts_per_tok", 1, count, default=1), common.dense(config)
        )
    forms = (experted if i in mixed else plain for i in range(layers))
    return tuple(form for form in forms if form is not None)


def _mixture(count: int, chosen: int, expert: Mlp) -> Experts:
    """A mixture of `count` experts, with a shared expert of the same width."""
    return Experts(count, chosen, expert, ROUTER, shared=expert)


def _layers_of_experts(config: Fields, layers: int) -> set[int]:
    listed = config.get("moe_layers")
    if listed is None:
        step = config.integer("interleave_moe_layer_step", 0, common.MOST_LAYERS, default=1)
        return set(range(step - 1, layers, step)) if step else set()
    if not isinstance(listed, list) or not set(listed) <= set(range(layers)):
        raise config.refuse("moe_layers", f"a list of layers below {layers}")
    return set(listed)


def _with_chunks(
    spec: DecoderSpec,
    rotating: list[bool],
    *,
    chunk: int,
    eps: float | None,
    temperature: Temperature | None,
) -> DecoderSpec:
    def changed(layer: Layer, rotates: bool) -> Layer:
        assert isinstance(layer.mixer, Attention)
        mixer = replace(layer.mixer, window=None)
        if rotates:
            return replace(layer, mixer=replace(mixer, chunk=chunk, qk_norm_after=eps))
        return replace(layer, mixer=replace(mixer, rope=None, temperature=temperature))

    pairs = zip(spec.layers, rotating, strict=True)
    return replace(spec, layers=tuple(changed(layer, rotates) for layer, rotates in pairs))


def _hf_recipes(spec: DecoderSpec, prefix: str) -> WeightRecipes:
    """Recipes of a Hugging Face checkpoint. Rope pairs are adjacent rows of q and k. The
    feed-forward's tensors have other names than in Llama.
    """

    def renamed(recipe: Recipe) -> Recipe:
        tensor = recipe.tensor.replace(".mlp.", ".feed_forward.")
        if tensor.startswith(TEXT):
            tensor = prefix + tensor.removeprefix(TEXT)
        return replace(recipe, tensor=tensor)

    def layer(i: int, roles: dict[str, Recipe]) -> dict[str, Recipe]:
        form = spec.layers[i].feed_forward
        if isinstance(form, Experts):
            roles = roles | _stacked(f"{TEXT}layers.{i}.feed_forward.experts.", form.expert)
        order = dict.fromkeys("qk", spec.attention.head_dim)
        return {
            role: replace(renamed(recipe), interleaved=order.get(role))
            for role, recipe in roles.items()
        }

    weights = hf_recipes(spec, MODULES)
    head = weights.head
    if head is not None and prefix == OUTER:
        head = Recipe(f"language_model.{head.tensor}")
    return replace(
        weights,
        embed=renamed(weights.embed),
        final_norm=renamed(weights.final_norm),
        head=head,
        layers=tuple(layer(i, roles) for i, roles in enumerate(weights.layers)),
    )


def _stacked(at: str, expert: Mlp) -> dict[str, Recipe]:
    """Recipes of stacked experts: tensors [experts, inputs, outputs], with the outputs of gate
    before those of up.
    """
    width = expert.intermediate
    fused = Recipe(f"{at}gate_up_proj", transposed=True)
    return {
        "gate": replace(fused, rows=(0, width)),
        "up": replace(fused, rows=(width, 2 * width)),
        "down": Recipe(f"{at}down_proj", transposed=True),
    }


def from_gguf(header: GgufHeader) -> Mapped:
    """Spec and recipes of a GGUF file. It has no keys for the chunk size, the layers without rope,
    and the temperature.
    """
    fields = header.fields("llama4.")
    if fields.get("attention.sliding_window") == 0:
        raise fields.refuse("attention.sliding_window", "files whose attention has chunks")
    dense = Mlp("gated", fields.integer("feed_forward_length", 1, common.WIDEST), "silu")
    spec = common.gguf_spec(header, "llama4", feed_forward=dense)
    count = fields.integer("expert_count", 1, experts.MOST_EXPERTS)
    expert = replace(
        dense, intermediate=fields.integer("expert_feed_forward_length", 1, common.WIDEST)
    )
    mixture = _mixture(count, fields.integer("expert_used_count", 1, count), expert)
    step = fields.integer("interleave_moe_layer_step", 1, common.MOST_LAYERS)
    mixed = tuple(
        replace(layer, feed_forward=mixture) if (i + 1) % step == 0 else layer
        for i, layer in enumerate(spec.layers)
    )
    spec = _with_chunks(
        replace(spec, layers=mixed),
        common.unrotated_every(len(spec.layers), common.UNROTATED_PERIOD),
        chunk=CHUNK,
        eps=None if count == WITHOUT_NORMS else spec.final_norm.eps,
        temperature=TEMPERATURE,
    )
    return spec, gguf_recipes(spec, interleaved=True)
