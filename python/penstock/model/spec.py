"""DecoderSpec: what a decoder computes, declared. The contract between checkpoints and backends.

JSON leaves out what is None or False, so that a new field changes neither the JSON nor the cache
identity of models that do not use it. `penstock_decoder::spec` parses it and refuses by name what
is not built.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm, or LayerNorm (mean subtracted), over the last dimension, times a weight."""

    kind: Literal["rms", "layer"]
    eps: float
    bias: bool = False
    unit_offset: bool = False
    """The weight is what is stored and 1."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Norms of a sublayer: `x += after(sublayer(before(x)))`."""

    before: Norm | None = None
    after: Norm | None = None


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All rope frequencies divided by `factor`."""

    factor: float
    kind: str = field(default="linear", init=False)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, a blend between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    kind: str = field(default="llama3", init=False)


@dataclass(frozen=True, slots=True)
class FactorsScaling:
    """Each rope frequency divided by its entry of the weights' `rope_factors` (GGUF)."""

    attention_factor: float | None = None
    """As for YarnScaling; None: 1."""
    kind: str = field(default="factors", init=False)


@dataclass(frozen=True, slots=True)
class LongropeScaling:
    """Each rope frequency divided by its entry of `divisors` (LongRoPE)."""

    divisors: tuple[float, ...]
    attention_factor: float
    """As for YarnScaling."""
    kind: str = field(default="longrope", init=False)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Pairs that turn less often than `beta_slow` times within the original context are divided by
    `factor`, those over `beta_fast` times kept, a ramp over the pairs between (YaRN).
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Factor of cosines and sines."""
    fractional: bool = False
    """The ramp's ends are not rounded to whole pairs."""
    kind: str = field(default="yarn", init=False)


RopeScaling = LinearScaling | Llama3Scaling | FactorsScaling | LongropeScaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions in half-split pairs, over the first `dims` numbers of a head or all."""

    theta: float
    scaling: RopeScaling | None = None
    dims: int | None = None


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries are multiplied by `1 + scale * ln(1 + floor((position + 1) / floor))`."""

    floor: float
    scale: float


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention. Query head h reads KV head h // (heads // kv_heads)."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    """None: no rotation."""
    window: int | None = None
    """Tokens that a token sees, itself included; None: all."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Norm | None = None
    """Over each query and key head, before rotation."""
    value_dim: int | None = None
    """Numbers of a value head; None: `head_dim`."""
    chunk: int | None = None
    """A token sees only tokens of its own chunk of this size."""
    sinks: bool = False
    """A learned logit of each query head takes part in the softmax."""
    qk_norm_after: float | None = None
    """Epsilon of an RMS norm without a weight over each query and key head, after rotation."""
    scale: float | None = None
    """Factor of the products of queries and keys; None: `head_dim ** -0.5`."""
    softcap: float | None = None
    """`c` of `c * tanh(score / c)`, which replaces the scaled score."""
    temperature: Temperature | None = None
    gate: bool = False
    """What the heads attend to is multiplied by the sigmoid of a product with the input."""
    kind: str = field(default="gqa", init=False)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): keys and values made of one latent per token."""

    heads: int
    kv_rank: int
    plain_dim: int
    """Numbers of a query and key head without rotation."""
    rope_dim: int
    value_dim: int
    norm: Norm
    """Norm of the latent, and of what the query projection's rank is."""
    query_rank: int | None = None
    rope: Rope | None = None
    """Rotation of the rope parts."""
    scale: float | None = None
    """Factor of the products of queries and keys; None: `(plain_dim + rope_dim) ** -0.5`."""
    kind: str = field(default="mla", init=False)


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A state of constant size in place of keys and values (gated delta net, Mamba 2): its sizes.
    No backend computes it yet.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    scalars: int
    """Numbers that the input gives for each value head: steps, and decays."""
    kernel: int
    """Tokens that the convolution before it sees."""
    kind: str = field(default="linear", init=False)


@dataclass(frozen=True, slots=True)
class Clamp:
    """`(up + offset) * gate * sigmoid(alpha * gate)`, with the gate at most `limit` and up within
    `limit` of zero (gpt-oss).
    """

    limit: float
    alpha: float
    offset: float


@dataclass(frozen=True, slots=True)
class Mlp:
    """Dense feed-forward: down(activation(gate(x)) * up(x)), or down(activation(up(x)))."""

    kind: Literal["gated", "plain"]
    intermediate: int
    activation: Literal["silu", "gelu_tanh", "gelu"]
    bias: bool = False
    clamp: Clamp | None = None
    """In place of the plain activation of a gated one with "silu"."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Contiguous groups of experts, the best of which are chosen from."""

    count: int
    keep: int
    by: Literal["max", "top2_sum"]
    """A group's score, of the choices of its experts."""


@dataclass(frozen=True, slots=True)
class Router:
    """How experts are chosen and weighted: scores of the logits, choice = score + correction,
    groups, the experts of the highest choice, their scores as weights, normalisation, scale.
    """

    score: Literal["softmax", "sigmoid", "none"]
    after_choice: bool = False
    """The logits are the choice; scores are computed among the chosen experts."""
    bias: bool = False
    """The logits have a bias."""
    correction: bool = False
    """A bias of each expert counts in the choice only."""
    groups: Groups | None = None
    normalise: bool = False
    """Weights are divided by their sum plus `epsilon`."""
    epsilon: float | None = None
    scale: float | None = None
    weight_on_input: bool = False
    """The weight multiplies the expert's input, not its output."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: the ones with the highest router scores compute a token."""

    experts: int
    experts_per_token: int
    expert: Mlp
    router: Router
    shared: Mlp | None = None
    """Always-on expert."""
    shared_gate: bool = False
    """Its output is multiplied by the sigmoid of a product with a vector."""
    kind: str = field(default="moe", init=False)

    @property
    def parts(self) -> tuple[Mlp, ...]:
        """A routed expert, and the shared one."""
        return (self.expert,) if self.shared is None else (self.expert, self.shared)


FeedForward = Mlp | Experts
Mixer = Attention | LatentAttention | LinearAttention


@dataclass(frozen=True, slots=True)
class Layer:
    """`x += mixer(x)`, then `x += feed_forward(x)`, each with its norms."""

    mixer_norms: Norms
    mixer: Mixer
    feed_forward_norms: Norms
    feed_forward: FeedForward


def _parts(layer: Layer) -> tuple[Mlp, ...]:
    form = layer.feed_forward
    return form.parts if isinstance(form, Experts) else (form,)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer."""

    family: str
    hidden: int
    vocab: int
    """Rows of the embedding: token ids are below this."""
    max_position: int
    final_norm: Norm
    layers: tuple[Layer, ...]
    learned_positions: bool = False
    """A row of a second table, by absolute position, is added to each embedding."""
    tied_embeddings: bool = False
    """The embedding is the output head."""
    embed_scale: float | None = None
    """Factor of the embeddings; None: 1."""
    final_softcap: float | None = None
    """`c` of `c * tanh(logit / c)`, which replaces each logit."""
    labels: int | None = None
    """Rows of the classification head; None: the model has none."""

    @property
    def attention(self) -> Attention:
        """Heads of all layers, which the decoder requires to be alike."""
        mixer = self.layers[0].mixer
        assert isinstance(mixer, Attention)
        return mixer

    @property
    def widths(self) -> tuple[int, ...]:
        """The different inner widths of the feed-forwards, experts included, ascending."""
        return tuple(sorted({mlp.intermediate for layer in self.layers for mlp in _parts(layer)}))

    @property
    def experts(self) -> int | None:
        """Routed experts, which the decoder requires to be as many in all layers that have some."""
        forms = (layer.feed_forward for layer in self.layers)
        return next((form.experts for form in forms if isinstance(form, Experts)), None)

    def to_json(self) -> str:
        """Different layers once, in `kinds`; `layers` has an index into them for each layer."""
        kinds = list(dict.fromkeys(self.layers))
        written = asdict(self)
        written["kinds"] = [asdict(kind) for kind in kinds]
        written["layers"] = [kinds.index(layer) for layer in self.layers]
        return json.dumps(_without_defaults(written))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where the numbers of a matrix [outputs, inputs], or of a vector, lie in a checkpoint."""

    tensor: str
    """For the matrices of experts with `{e}` where the expert's number stands, or the name of a
    tensor whose outermost dimension is the expert."""
    rows: tuple[int, int] | None = None
    """First row and the one after the last, after transposition; None: all."""
    cols: tuple[int, int] | None = None
    expert: int | None = None
    """Index into the outermost dimension of a tensor that stacks experts."""
    transposed: bool = False
    """The tensor is stored as [inputs, outputs]."""
    scales: str | None = None
    """Tensor of the scales of one that holds the codes of MXFP4, 16 bytes for 32 inputs, or 8-bit
    floats, whose blocks of 128 x 128 share one."""
    interleaved: int | None = None
    """Head size, where rows are stored for interleaved rotation; the decoder puts them back."""
    unrotated: int | None = None
    """Rows at the start of such a head that stay as they are."""


@dataclass(frozen=True, slots=True)
class WeightRecipes:
    """Recipes by role. `layers` has the roles that the spec of each layer needs."""

    embed: Recipe
    final_norm: Recipe
    layers: tuple[dict[str, Recipe], ...]
    final_norm_bias: Recipe | None = None
    positions: Recipe | None = None
    head: Recipe | None = None
    """None when the embedding serves as output head."""
    score: Recipe | None = None
    """Classification head [labels, hidden]."""
    rope_factors: Recipe | None = None

    def to_json(self) -> str:
        return json.dumps(_without_defaults(asdict(self)))


def _without_defaults(value: object) -> object:
    """JSON without None and False; a recipe that has only its tensor is the tensor's name."""
    if isinstance(value, dict):
        kept = {
            key: _without_defaults(item)
            for key, item in value.items()
            if item is not None and item is not False
        }
        return kept["tensor"] if list(kept) == ["tensor"] else kept
    if isinstance(value, (list, tuple)):
        return [_without_defaults(item) for item in value]
    return value
