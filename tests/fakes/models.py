"""Small model descriptions."""

from penstock.core import Pooler, PoolerOutput, Pooling
from penstock.model import DecoderSpec, GenerationDefaults, ModelInfo, TokenFacts, WeightRecipes
from penstock.model.spec import Attention, Layer, Mlp, Norm, Norms, Recipe, Rope

RMS = Norm("rms", 1e-5)


def dense_spec(
    layers: int,
    hidden: int,
    vocab: int,
    max_position: int,
    heads: tuple[int, int, int],
    intermediate: int,
    theta: float = 1e5,
) -> DecoderSpec:
    """A Llama with `heads` = query heads, KV heads, head size, and a tied head."""
    attention, mlp = Attention(*heads, rope=Rope(theta)), Mlp("gated", intermediate, "silu")
    layer = Layer(Norms(RMS), attention, Norms(RMS), mlp)
    return DecoderSpec(
        "llama", hidden, vocab, max_position, RMS, (layer,) * layers, tied_embeddings=True
    )


def model_info(
    spec: DecoderSpec, *paths: str, generation: GenerationDefaults | None = None
) -> ModelInfo:
    recipes = WeightRecipes(Recipe("embed"), Recipe("norm"), ())
    tokens = TokenFacts(1, 2, (2,), False)
    defaults = generation or GenerationDefaults()
    pooler = Pooler(PoolerOutput.UNIT_EMBEDDING, spec.hidden)
    return ModelInfo(
        "m", "gguf", "llama", paths, spec, recipes, defaults, tokens, pooler, Pooling.LAST
    )
