"""DecoderSpec: declarative description of a decoder, the contract between checkpoints and backends.

JSON omits None and False, so that a new field changes neither the JSON nor the cache identity of
models without it. `penstock_decoder::spec` parses the JSON and rejects unsupported features by
name.
"""

import json
from dataclasses import asdict, dataclass, field
from math import gcd
from typing import Literal


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm, or LayerNorm (mean subtracted), over the last dimension, times a weight."""

    kind: Literal["rms", "layer"]
    eps: float
    bias: bool = False
    unit_offset: bool = False
    """The weight is 1 plus the stored value."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Norms of a sublayer (mixer or feed-forward): `x += after(sublayer(before(x)))`. None: no
    norm.
    """

    before: Norm | None = None
    after: Norm | None = None


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Rope scaling: all frequencies are divided by `factor`."""

    factor: float
    kind: str = field(default="linear", init=False)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Rope scaling of Llama 3.1: frequencies of long wavelengths are divided by `factor`, those of
    short ones are kept, with a blend between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    kind: str = field(default="llama3", init=False)


@dataclass(frozen=True, slots=True)
class FactorsScaling:
    """Rope scaling in GGUF files: each frequency is divided by its entry in the tensor
    `rope_factors`.
    """

    attention_factor: float | None = None
    """Factor of cosines and sines; None for 1."""
    kind: str = field(default="factors", init=False)


@dataclass(frozen=True, slots=True)
class LongropeScaling:
    """Rope scaling of LongRoPE: each frequency is divided by its entry in `divisors`."""

    divisors: tuple[float, ...]
    attention_factor: float
    """Factor of cosines and sines."""
    kind: str = field(default="longrope", init=False)


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Rope scaling of YaRN: the frequencies of pairs with fewer than `beta_slow` rotations within
    the original context are divided by `factor`, those of pairs with more than `beta_fast` are
    kept, and a ramp connects both.
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Factor by which cosines and sines are multiplied."""
    fractional: bool = False
    """True if the ends of the ramp are not rounded to whole pairs."""
    kind: str = field(default="yarn", init=False)


RopeScaling = LinearScaling | Llama3Scaling | FactorsScaling | LongropeScaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding in half-split pairs, over the first `dims` dimensions of a head;
    None for all.
    """

    theta: float
    scaling: RopeScaling | None = None
    dims: int | None = None


@dataclass(frozen=True, slots=True)
class Temperature:
    """Attention temperature: queries are multiplied by `1 + scale * ln(1 + floor((position + 1) /
    floor))`.
    """

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
    """Tokens that a token attends to, itself included; None for all."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Norm | None = None
    """Norm of each query and key head, before rotation."""
    value_dim: int | None = None
    """Size of a value head; None for `head_dim`."""
    chunk: int | None = None
    """Chunked attention: a token attends only to tokens of its own chunk of this size; None: no
    chunks.
    """
    sinks: bool = False
    """A learned logit of each query head takes part in the softmax."""
    qk_norm_after: float | None = None
    """Epsilon of a weightless RMS norm of each query and key head, after rotation."""
    scale: float | None = None
    """Factor of the query-key products; None for `head_dim ** -0.5`."""
    softcap: float | None = None
    """`c` of `c * tanh(score / c)`, which replaces the scaled score."""
    temperature: Temperature | None = None
    gate: bool = False
    """The attention output is multiplied by the sigmoid of a projection of the input."""
    kind: str = field(default="gqa", init=False)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): keys and values of all heads are projected from
    one latent per token.
    """

    heads: int
    kv_rank: int
    plain_dim: int
    """Dimensions of a query or key head that are not rotated."""
    rope_dim: int
    value_dim: int
    norm: Norm
    """Norm of the latent, and of the query's low-rank projection."""
    query_rank: int | None = None
    rope: Rope | None = None
    """Rotation of the rope dimensions."""
    scale: float | None = None
    """Factor of the query-key products; None for `(plain_dim + rope_dim) ** -0.5`."""
    kind: str = field(default="mla", init=False)


@dataclass(frozen=True, slots=True)
class StateShape:
    """The state of a sequence in one layer whose mixer has one: f32 numbers, independent of the
    length of the sequence.
    """

    units: int
    """Number of equal parts that can be divided between ranks."""
    numbers: int
    """Numbers in a unit."""


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Linear attention (gated delta net, Mamba 2): a state of constant size instead of keys and
    values. No backend supports it yet; these are its sizes.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    scalars: int
    """Number of scalars (steps and decays) that are projected from the input for each
    value head.
    """
    kernel: int
    """Number of tokens that the preceding convolution covers."""
    kind: str = field(default="linear", init=False)

    @property
    def state(self) -> StateShape:
        """A matrix [key_dim, value_dim] for each value head, and the inputs of the convolution for
        the last `kernel - 1` tokens. Value heads are cut together with their key heads.
        """
        units = gcd(self.key_heads, self.value_heads)
        keys, values = self.key_heads // units, self.value_heads // units
        channels = 2 * keys * self.key_dim + values * self.value_dim
        matrices = values * self.key_dim * self.value_dim
        return StateShape(units, matrices + (self.kernel - 1) * channels)


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Gated short convolution (LFM2): `out(c * convolution(b * x))`, where `b`, `c` and `x` are
    projections of the input to `channels` each, and the convolution is causal and separate for
    each channel.
    """

    channels: int
    kernel: int
    """Number of tokens that the convolution covers."""
    units: int
    """Number of equal parts that the channels can be divided into between ranks."""
    bias: bool = False
    """The convolution and all projections have biases."""
    kind: str = field(default="conv", init=False)

    @property
    def state(self) -> StateShape:
        """`b * x` of the last `kernel - 1` tokens."""
        return StateShape(self.units, self.channels // self.units * (self.kernel - 1))


@dataclass(frozen=True, slots=True)
class Clamp:
    """Clamped activation of gpt-oss: `(up + offset) * gate * sigmoid(alpha * gate)`, with gate at
    most `limit` and up within `limit` of zero.
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
    """Clamped activation, in place of the plain one. Only for gated feed-forwards with "silu"."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Division of experts into contiguous groups of equal size. Experts are chosen from the `keep`
    best of `count` groups only.
    """

    count: int
    keep: int
    by: Literal["max", "top2_sum"]
    """How a group is scored from the choice values (scores for selection) of its experts."""


@dataclass(frozen=True, slots=True)
class Router:
    """Selection and weighting of experts. The steps, in order: scores from the logits; choice
    values, which are score + correction; the best groups; the experts with the highest choice
    values; their scores as weights; normalisation; scale.
    """

    score: Literal["softmax", "sigmoid", "none"]
    after_choice: bool = False
    """Experts are chosen by their logits, and scores are computed among the chosen ones only."""
    bias: bool = False
    """The logits have a bias."""
    correction: bool = False
    """Each expert has a bias that is added for the choice only, not for its weight."""
    groups: Groups | None = None
    normalise: bool = False
    """Weights are divided by their sum plus `epsilon`."""
    epsilon: float | None = None
    scale: float | None = None
    weight_on_input: bool = False
    """The weight multiplies the expert's input instead of its output."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: the experts with the highest router scores compute a token."""

    experts: int
    experts_per_token: int
    expert: Mlp
    router: Router
    shared: Mlp | None = None
    """Shared expert, used by every token."""
    shared_gate: bool = False
    """The shared expert's output is multiplied by the sigmoid of a projection of the input to one
    number.
    """
    kind: str = field(default="moe", init=False)

    @property
    def parts(self) -> tuple[Mlp, ...]:
        """Shape of a routed expert, then that of the shared expert if there is one."""
        return (self.expert,) if self.shared is None else (self.expert, self.shared)


FeedForward = Mlp | Experts
CachedAttention = Attention | LatentAttention
"""Mixers that keep keys and values of all tokens, in the KV cache."""
Mixer = CachedAttention | LinearAttention | ShortConvolution


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
    """Number of rows of the embedding. Token ids are lower."""
    max_position: int
    final_norm: Norm
    layers: tuple[Layer, ...]
    learned_positions: bool = False
    """Whether a row of a second table, indexed by absolute position, is added to each embedding."""
    tied_embeddings: bool = False
    """The embedding is also the output head."""
    embed_scale: float | None = None
    """Factor by which embeddings are multiplied; None for 1."""
    final_softcap: float | None = None
    """`c` of `c * tanh(logit / c)`, which replaces each logit."""
    labels: int | None = None
    """Rows of the classification head; None without one."""

    @property
    def first_attention(self) -> CachedAttention:
        """Attention of the first layer that has any. The decoder requires at least one such layer,
        and the same heads in all of them.
        """
        mixers = (layer.mixer for layer in self.layers)
        return next(mixer for mixer in mixers if isinstance(mixer, CachedAttention))

    @property
    def attention(self) -> Attention:
        """`first_attention` of a model with grouped-query attention."""
        mixer = self.first_attention
        assert isinstance(mixer, Attention)
        return mixer

    @property
    def widths(self) -> tuple[int, ...]:
        """Distinct inner widths of the feed-forwards, including experts, ascending."""
        return tuple(sorted({mlp.intermediate for layer in self.layers for mlp in _parts(layer)}))

    @property
    def experts(self) -> int | None:
        """Number of routed experts; None without a mixture. The decoder requires the same number in
        all layers.
        """
        forms = (layer.feed_forward for layer in self.layers)
        return next((form.experts for form in forms if isinstance(form, Experts)), None)

    def to_json(self) -> str:
        """JSON: distinct layers in `kinds`, and each layer's index into them in `layers`."""
        kinds = list(dict.fromkeys(self.layers))
        written = asdict(self)
        written["kinds"] = [asdict(kind) for kind in kinds]
        written["layers"] = [kinds.index(layer) for layer in self.layers]
        return json.dumps(_without_defaults(written))


CodeLayout = Literal["gptq", "gptq_v2", "awq", "packed"]
"""Order of codes in words of 32 bits. `packed`: compressed-tensors. `gptq` stores zero points
less 1.
"""


@dataclass(frozen=True, slots=True)
class Codes:
    """How a tensor of integer codes gives a matrix: a weight is `(code - zero point) * scale`."""

    layout: CodeLayout
    bits: int
    scales: str
    """Name of the tensor of scales."""
    rows: int | None = None
    """Outputs that share a scale; None for all."""
    cols: int | None = None
    """Inputs that share a scale; None for all."""
    zeros: str | None = None
    """Name of the tensor of zero points; None if all are half of the codes' range."""
    groups: str | None = None
    """Name of the tensor with the group of each input; None if groups are contiguous."""
    shape: str | None = None
    """Name of the tensor with the matrix's shape."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Where a matrix [outputs, inputs], or a vector, is in a checkpoint."""

    tensor: str
    """Tensor name. For matrices of experts, either a name with `{e}` for the expert's number, or
    the name of a tensor whose outermost dimension is the expert.
    """
    rows: tuple[int, int] | None = None
    """First row of the tensor (after transposition), and the one after the last; None for all."""
    cols: tuple[int, int] | None = None
    expert: int | None = None
    """Index into the outermost dimension of a tensor that stacks experts."""
    transposed: bool = False
    """The tensor is stored as [inputs, outputs]."""
    scales: str | None = None
    """Name of the tensor with the scales, for MXFP4 codes (16 bytes for 32 inputs) or 8-bit floats
    (one scale for each block of 128 x 128).
    """
    interleaved: int | None = None
    """Size of a head, if its rows are stored for interleaved rotation. The decoder reorders them
    for half-split rotation.
    """
    unrotated: int | None = None
    """Number of leading rows of such a head that are not rotated, and not reordered."""
    codes: Codes | None = None
    """Form of a tensor of integer codes. Rows and columns count weights, not words."""

    @property
    def module(self) -> str:
        """Name of the module with the weights, as in quantisation settings."""
        if self.codes is not None:
            return self.tensor.rpartition(".")[0]
        return self.tensor.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class WeightRecipes:
    """Recipes of all weights of a model, by role. `layers` has, for each layer, those that its spec
    requires.
    """

    embed: Recipe
    final_norm: Recipe
    layers: tuple[dict[str, Recipe], ...]
    final_norm_bias: Recipe | None = None
    positions: Recipe | None = None
    head: Recipe | None = None
    """None if the embedding serves as output head."""
    score: Recipe | None = None
    """Classification head [labels, hidden]."""
    rope_factors: Recipe | None = None

    def to_json(self) -> str:
        return json.dumps(_without_defaults(asdict(self)))


def _without_defaults(value: object) -> object:
    """`value` for JSON, without None and False. A recipe with nothing but a tensor becomes the
    tensor's name.
    """
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
