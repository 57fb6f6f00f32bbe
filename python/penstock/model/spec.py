"""What the decoder has to compute, declared: the contract between checkpoint metadata and every
executor.

The JSON forms are parsed by `penstock_decoder::spec`, which refuses fields it does not know.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention. Query head h reads KV head h // (heads // kv_heads)."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    """RMS norm over head_dim of each query and key head, before rope."""
    windows: tuple[int | None, ...] | None = None
    """Per layer: a token sees the last `window` positions, its own included; None sees all."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All rope frequencies divided by `factor`."""

    factor: float
    kind: str = field(default="linear", init=False)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths divided by `factor`, short ones kept, a blend between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    kind: str = field(default="llama3", init=False)


@dataclass(frozen=True, slots=True)
class FactorsScaling:
    """Each rope frequency divided by its entry of the tensor with the role `rope_factors` (GGUF)."""

    kind: str = field(default="factors", init=False)


RopeScaling = LinearScaling | Llama3Scaling | FactorsScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the whole head, half-split pairs."""

    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(silu(gate(x)) * up(x))."""

    intermediate: int
    kind: str = field(default="swiglu", init=False)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A pre-norm decoder with RMS norms."""

    family: str
    layers: int
    hidden: int
    vocab: int
    """Rows of the embedding: token ids are below this."""
    max_position: int
    norm_eps: float
    attention: Attention
    rope: Rope
    mlp: Mlp
    tied_embeddings: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names by role. `layer` has the roles that the spec needs, with "{i}" for the layer
    number.
    """

    embed: str
    final_norm: str
    head: str | None
    """None when the embedding serves as output head."""
    rope_factors: str | None
    layer: Mapping[str, str]
    rope_rows_interleaved: bool
    """Whether q and k rows (and biases) are stored for interleaved rope; the loader un-permutes
    them.
    """

    def to_json(self) -> str:
        return json.dumps(asdict(self))
