"""Memory of a rank beside weights and KV blocks, from the spec: no profiling run is needed.

A step's tensors are counted as if all of a layer's were alive together.
"""

from __future__ import annotations

import torch

from penstock.backends.torch.graphs import BUCKETS
from penstock.backends.torch.kernels.decode import FILLS
from penstock.backends.torch.kernels.merge import MOST_SPLITS
from penstock.backends.torch.kernels.sample import drawing_bytes
from penstock.backends.torch.prompt_graphs import TOKENS, sizes_up_to
from penstock.backends.torch.sampling import HEAD_ROWS
from penstock.backends.torch.shard import Shard
from penstock.core import PenstockError
from penstock.model.spec import Attention, DecoderSpec, Experts, FeedForward, LatentAttention, Mixer

WIDE = 4
"""Bytes of f32."""
MULTIPROCESSORS = 192
"""Those of the largest GPU, an RTX PRO 6000 with 188, rounded up."""
LATENT_HEADS = 64
"""Query heads of a program of latent attention, at most."""
PLACE = 40
"""Bytes of the indices of a row and one of its experts, as they are sorted."""


def step_bytes(spec: DecoderSpec, shard: Shard, tokens: int, dtype: torch.dtype) -> int:
    """The most that the tensors of a step of so many tokens take at once."""
    logits = 3 * WIDE * min(tokens, HEAD_ROWS) * spec.vocab if shard.has_head else 0
    return tokens * _row(spec, shard, dtype) + split_bytes(spec, shard, tokens) + logits


def sent_bytes(spec: DecoderSpec, tokens: int, dtype: torch.dtype) -> int:
    """The rows of a step on their way to the next stage, while the next step computes."""
    return tokens * spec.hidden * int(dtype.itemsize)


def split_bytes(spec: DecoderSpec, shard: Shard, rows: int) -> int:
    """The most that the parts of rows take whose attention is split. A row has more than one only
    while programs for half as many would not fill the GPU; the one of latent attention is kept too.
    """
    mixers = (spec.layers[index].mixer for index in shard.layers)
    return max((_parts(mixer, shard, rows) for mixer in mixers), default=0)


def _parts(mixer: Mixer, shard: Shard, rows: int) -> int:
    programs, least = 2 * FILLS * MULTIPROCESSORS, 0
    if isinstance(mixer, LatentAttention):
        heads, width = len(shard.heads), mixer.kv_rank
        group, least = min(heads, LATENT_HEADS), rows * heads
    else:
        assert isinstance(mixer, Attention)
        group, width = mixer.heads // mixer.kv_heads, mixer.head_dim
        heads = len(shard.kv_heads(group)) * group
    return WIDE * (width + 1) * max(least, min(programs * group, rows * heads * MOST_SPLITS))


def graph_bytes(
    spec: DecoderSpec, shard: Shard, slots: int, tokens: int, dtype: torch.dtype
) -> int:
    """The most that all graphs keep, for steps of at most so many tokens. They share a pool: that
    of the largest, and the results of all.
    """
    size, sequences = int(dtype.itemsize), sizes_up_to(slots, BUCKETS)
    most, prompts = sequences[-1], sizes_up_to(tokens, TOKENS)[-1]
    row = _row(spec, shard, dtype)
    # Of several ranks the first one has its own, those of all, and those in the order of tokens.
    copies = 1 if shard.ranks == 1 else 3
    logits = copies * size * spec.vocab + drawing_bytes(spec.vocab)
    decodes = most * (row + logits) + max(split_bytes(spec, shard, n) for n in sequences)
    mixed = prompts * row + split_bytes(spec, shard, prompts) + _shared_parts(spec, shard, slots)
    results = sum(sequences) * (spec.hidden * size + 3 * WIDE) + prompts * spec.hidden * size
    return max(decodes, mixed) + results


def _shared_parts(spec: DecoderSpec, shard: Shard, rows: int) -> int:
    """Parts of rows of which the device alone knows how many there are: one of each at least."""
    mixers = [spec.layers[index].mixer for index in shard.layers]
    own = [each for each in mixers if isinstance(each, Attention)]
    groups = [(each.heads // each.kv_heads, each.head_dim + 1) for each in own]
    numbers = (len(shard.kv_heads(group)) * group * width for group, width in groups)
    return WIDE * rows * max(numbers, default=0)


def _row(spec: DecoderSpec, shard: Shard, dtype: torch.dtype) -> int:
    """Bytes of a row's tensors within a layer."""
    size = int(dtype.itemsize)
    layers = [spec.layers[index] for index in shard.layers]
    mixers = max((_mixer(layer.mixer, shard) for layer in layers), default=0)
    forms = (_feed_forward(layer.feed_forward, shard, spec.hidden, size) for layer in layers)
    inner = max(forms, default=0)
    # The residual stream and its sum, the normed rows, a branch, and a copy of one in f32.
    stream = spec.hidden * (4 * size + 2 * WIDE)
    return stream + size * max(mixers, inner)


def _mixer(mixer: Mixer, shard: Shard) -> int:
    """Numbers of a row: projections, queries once more, what is attended to, the output."""
    heads = len(shard.heads)
    if isinstance(mixer, LatentAttention):
        head, kept = mixer.plain_dim + mixer.rope_dim, mixer.kv_rank + mixer.rope_dim
        return kept + (mixer.query_rank or 0) + heads * (2 * head + 2 * kept + mixer.value_dim)
    assert isinstance(mixer, Attention)
    kv = shard.kv_heads(mixer.heads // mixer.kv_heads)
    queries = len(kv) * (mixer.heads // mixer.kv_heads)
    return (3 * queries + 4 * len(kv)) * mixer.head_dim


def _feed_forward(form: FeedForward, shard: Shard, hidden: int, size: int) -> int:
    """Numbers of a row: gate and up, and their product. For experts gate and up with the gathered
    rows, or with their biases, which take more than what comes after.
    """
    if not isinstance(form, Experts):
        return 4 * len(shard.mlp[form.intermediate])
    own = form.expert.intermediate if shard.experts else len(shard.mlp[form.expert.intermediate])
    shared = 0 if form.shared is None else 4 * len(shard.mlp[form.shared.intermediate])
    place = max(2 * own + hidden, 4 * own) + PLACE // size
    return form.experts_per_token * place + 2 * form.experts + shared


FOR_STEPS = (
    "Lower --kv-cache-memory-bytes or --max-num-batched-tokens, or cut the model with "
    "--tensor-parallel-size"
)
FOR_WEIGHTS = (
    "Cut the model with --tensor-parallel-size or --pipeline-parallel-size, serve a checkpoint of "
    "smaller weights, or end other processes that use the GPU (nvidia-smi shows them)"
)


def out_of_memory(
    error: torch.OutOfMemoryError, doing: str, remedy: str = FOR_STEPS
) -> PenstockError:
    """What was being done, what is missing, and what gives room."""
    text = str(error)
    head, found, _ = text.partition(" is free.")
    reason = head + " is free" if found else text.partition(". GPU")[0]
    return PenstockError(f"the GPU has too little memory for {doing}: {reason}. {remedy}")
