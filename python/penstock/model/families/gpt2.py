"""GPT-2: LayerNorm, learned positions, biases, a plain GELU feed-forward, fused q, k and v."""

from penstock.model import common
from penstock.model.fields import Fields
from penstock.model.files import tensor_names
from penstock.model.gguf import GgufHeader
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    Layer,
    Mlp,
    Norm,
    Norms,
    Recipe,
    WeightRecipes,
)

ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")
MODULES = {
    "mixer_norm": "ln_1",
    "qkv": "attn.c_attn",
    "o": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
GGUF_MODULES = {
    "mixer_norm": "attn_norm",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "up": "ffn_up",
    "down": "ffn_down",
}


def from_hf(config: Fields) -> tuple[DecoderSpec, WeightRecipes]:
    if config.get("activation_function") not in ACTIVATIONS:
        raise config.refuse("activation_function", " ".join(ACTIVATIONS))
    for key, only in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if config.flag(key, default=only) is not only:
            raise config.refuse(key, str(only).lower())
    hidden = config.integer("n_embd", 1, common.WIDEST)
    spec = _spec(
        layers=config.integer("n_layer", 1, common.MOST_LAYERS),
        heads=common.dividing_heads(config, "n_head", hidden),
        hidden=hidden,
        intermediate=config.integer("n_inner", 1, common.WIDEST, default=4 * hidden),
        vocab=config.integer("vocab_size", 1, common.LARGEST_VOCAB),
        max_position=config.integer("n_positions", 1, common.LONGEST_CONTEXT),
        eps=config.number("layer_norm_epsilon", 1e-12, 0.1),
        tied=config.flag("tie_word_embeddings", default=True),
    )
    # Checkpoints of the bare model, such as the published ones, have no prefix.
    names = tensor_names(config.file.parent)
    prefix = "" if "wte.weight" in names else "transformer."
    return spec, WeightRecipes(
        embed=Recipe(f"{prefix}wte.weight"),
        positions=Recipe(f"{prefix}wpe.weight"),
        final_norm=Recipe(f"{prefix}ln_f.weight"),
        final_norm_bias=Recipe(f"{prefix}ln_f.bias"),
        head=None if spec.tied_embeddings else Recipe("lm_head.weight"),
        layers=tuple(
            _layer(f"{prefix}h.{i}.", MODULES, hidden, transposed=True)
            for i in range(len(spec.layers))
        ),
    )


def from_gguf(header: GgufHeader) -> tuple[DecoderSpec, WeightRecipes]:
    """Spec and recipes of a GGUF file. It has the same fused tensors as other checkpoints, but as
    [outputs, inputs].
    """
    fields = header.fields("gpt2.")
    hidden = fields.integer("embedding_length", 1, common.WIDEST)
    spec = _spec(
        layers=fields.integer("block_count", 1, common.MOST_LAYERS),
        heads=common.dividing_heads(fields, "attention.head_count", hidden),
        hidden=hidden,
        intermediate=fields.integer("feed_forward_length", 1, common.WIDEST),
        vocab=header.embedding_rows(),
        max_position=fields.integer("context_length", 1, common.LONGEST_CONTEXT),
        eps=fields.number("attention.layer_norm_epsilon", 1e-12, 0.1),
        tied="output.weight" not in header.shapes,
    )
    return spec, WeightRecipes(
        embed=Recipe("token_embd.weight"),
        positions=Recipe("position_embd.weight"),
        final_norm=Recipe("output_norm.weight"),
        final_norm_bias=Recipe("output_norm.bias"),
        head=None if spec.tied_embeddings else Recipe("output.weight"),
        layers=tuple(
            _layer(f"blk.{i}.", GGUF_MODULES, hidden, transposed=False)
            for i in range(len(spec.layers))
        ),
    )


def _spec(
    *,
    layers: int,
    heads: int,
    hidden: int,
    intermediate: int,
    vocab: int,
    max_position: int,
    eps: float,
    tied: bool,
) -> DecoderSpec:
    norm = Norm("layer", eps, bias=True)
    attention = Attention(heads, heads, hidden // heads, qkv_bias=True, out_bias=True)
    mlp = Mlp("plain", intermediate, "gelu_tanh", bias=True)
    return DecoderSpec(
        family="gpt2",
        hidden=hidden,
        vocab=vocab,
        max_position=max_position,
        final_norm=norm,
        layers=(Layer(Norms(norm), attention, Norms(norm), mlp),) * layers,
        learned_positions=True,
        tied_embeddings=tied,
    )


def _layer(
    prefix: str, modules: dict[str, str], hidden: int, *, transposed: bool
) -> dict[str, Recipe]:
    recipes = {}
    for role, module in modules.items():
        matrix = transposed and "norm" not in role
        parts = zip("qkv", range(3), strict=True) if role == "qkv" else [(role, None)]
        for part, third in parts:
            rows = None if third is None else (third * hidden, (third + 1) * hidden)
            recipes[part] = Recipe(f"{prefix}{module}.weight", rows, transposed=matrix)
            recipes[f"{part}_bias"] = Recipe(f"{prefix}{module}.bias", rows)
    return recipes
