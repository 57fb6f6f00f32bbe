"""Memory that a rank needs in addition to weights and KV blocks.

On a GPU this memory is measured: the largest steps and graphs run before the KV pools are sized.
This module estimates the memory that is not measured, from the tensors that exist at the same time:
graphs captured later, and steps on a device that uses host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.backends.torch.kernels.decode import FILLS
from penstock.backends.torch.kernels.merge import MOST_SPLITS
from penstock.backends.torch.kernels.sample import drawing_bytes
from penstock.backends.torch.sampling.logit_processors import ENTRIES
from penstock.backends.torch.sampling.sampling import HEAD_ROWS
from penstock.backends.torch.shard import Shard
from penstock.core import PenstockError
from penstock.model.spec import Attention, DecoderSpec, Experts, FeedForward, LatentAttention, Mixer

WIDE = 4
"""Bytes per f32 element."""
MULTIPROCESSORS = 192
"""Upper bound of a GPU's multiprocessors: the largest GPU, an RTX PRO 6000, has 188."""
LATENT_HEADS = 64
"""Maximum query heads per program of latent attention."""
PLACE = 20
"""Bytes per (row, selected expert) pair for its weight and its indices."""
OFFSETS = 32
"""Bytes per row for its input columns: token, position, places in the KV pools."""
DRAWN = 21
"""Bytes per logit while sampling: the original in f32, masked by a grammar, two copies for the
rules, the logits before the rules, and a mask.
"""
ENTRY = 28
"""Bytes per logit that a rule changes: its index, and its value before and after."""
MARGIN = 256 << 20
"""Bytes reserved for later allocations of the driver: code and stacks of kernels that have not been
launched yet.
"""
DRIVER_STEP = 2 << 20
"""Granularity of the driver's allocations in bytes."""
MOST_OF_DRIVER = 32 << 20
"""Upper bound in bytes of the driver's memory per graph. If the measured value is higher, another
process has allocated the rest.
"""

SMALL, LARGE = 1 << 20, 10 << 20
SMALL_SEGMENT, SEGMENT = 2 << 20, 20 << 20


def graph_bytes(pool: int, driver: int, results: Sequence[int]) -> int:
    """Upper bound of the bytes that the graphs not captured yet will take, from the sizes in bytes
    of their results. The largest graphs, already captured, share a pool of `pool` bytes, and each
    took `driver` bytes of driver memory.

    All graphs reuse the pool, but their results stay in it and fragment it. Therefore the pool is
    counted twice.
    """
    each = min(max(driver, DRIVER_STEP), MOST_OF_DRIVER)
    kept = sum(map(allocated, results)) + 2 * SEGMENT
    return pool + kept + len(results) * each


def allocated(size: int) -> int:
    """GPU memory in bytes that a tensor of `size` bytes takes if there are many like it. torch's
    caching allocator (PyTorch, c10/cuda/CUDACachingAllocator.cpp) cuts tensors up to 1 MiB from 2
    MiB segments and tensors below 10 MiB from 20 MiB segments. A larger tensor gets its own
    segment, a multiple of 2 MiB.
    """
    size = _multiple(size, 512)
    if size <= SMALL:
        return SMALL_SEGMENT // (SMALL_SEGMENT // size) if size else 0
    if size < LARGE:
        return SEGMENT // (SEGMENT // size)
    return _multiple(size, SMALL_SEGMENT)


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


def step_bytes(
    spec: DecoderSpec, shard: Shard, tokens: int, dtype: torch.dtype, tables: int = 0
) -> int:
    """Peak bytes of activations in a step of `tokens` tokens: within a layer, or during sampling
    with all options enabled. `tables`: bytes of the step's block tables.
    """
    layer = layer_bytes(spec, shard, tokens, dtype)
    if not shard.has_head:
        return layer + tables
    stream = tokens * (spec.hidden * int(dtype.itemsize) + OFFSETS)
    rows = min(tokens, HEAD_ROWS)
    changed = rows * DRAWN * spec.vocab + ENTRY * min(rows * spec.vocab, ENTRIES)
    # Three f32 copies of the logits, one of them masked by the grammar, and the mask.
    drawn = max(changed, rows * (13 * spec.vocab + drawing_bytes(spec.vocab)))
    return max(layer, stream + drawn) + tables


def layer_bytes(spec: DecoderSpec, shard: Shard, tokens: int, dtype: torch.dtype) -> int:
    """Peak bytes of activations within a layer, for `tokens` rows."""
    return tokens * _row(spec, shard, dtype) + split_bytes(spec, shard, tokens)


def sent_bytes(spec: DecoderSpec, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of a step's activations in flight to the next stage while the next step computes."""
    return tokens * spec.hidden * int(dtype.itemsize)


def split_bytes(spec: DecoderSpec, shard: Shard, rows: int) -> int:
    """Maximum bytes of the partial results of attention that is split over several programs per
    row. A row is split further only while half as many programs would not fill the GPU. Latent
    attention stores a partial result even for one split.
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


def _row(spec: DecoderSpec, shard: Shard, dtype: torch.dtype) -> int:
    """Peak bytes of activations per row within a layer."""
    size = int(dtype.itemsize)
    layers = [spec.layers[index] for index in shard.layers]
    mixers = max((_mixer(layer.mixer, shard) for layer in layers), default=0)
    forms = (_feed_forward(layer.feed_forward, shard, spec.hidden, size) for layer in layers)
    inner = max(forms, default=0)
    # 2 * hidden: the residual stream and the normalised rows.
    return size * (2 * spec.hidden + max(mixers, inner)) + OFFSETS


def _mixer(mixer: Mixer, shard: Shard) -> int:
    """Elements per row within attention: projections, a copy of the queries, and the attention
    outputs of decodes, of prompts and of both combined.
    """
    heads = len(shard.heads)
    if isinstance(mixer, LatentAttention):
        head, kept = mixer.plain_dim + mixer.rope_dim, mixer.kv_rank + mixer.rope_dim
        down = kept + (mixer.query_rank or 0)
        return down + heads * (head + kept + mixer.kv_rank + mixer.value_dim)
    assert isinstance(mixer, Attention)
    kv = shard.kv_heads(mixer.heads // mixer.kv_heads)
    queries = len(kv) * (mixer.heads // mixer.kv_heads)
    return (4 * queries + 2 * len(kv)) * mixer.head_dim


def _feed_forward(form: FeedForward, shard: Shard, hidden: int, size: int) -> int:
    """Elements per row within a feed-forward: gate, up and their product. A mixture needs them per
    selected expert: gate and up, and the larger of the gathered rows and the product (with biases,
    gate and up in f32).
    """
    if not isinstance(form, Experts):
        return 3 * len(shard.mlp[form.intermediate])
    own = form.expert.intermediate if shard.experts else len(shard.mlp[form.expert.intermediate])
    shared = 0 if form.shared is None else 3 * len(shard.mlp[form.shared.intermediate])
    beside = 2 * own * WIDE // size if form.expert.bias else own
    place = max(hidden, beside) + 2 * own + PLACE // size
    routed = form.experts_per_token * place + WIDE * form.experts // size
    return max(routed + (hidden if shared else 0), shared)


FOR_STEPS = "Lower --max-num-batched-tokens, or cut the model with --tensor-parallel-size"
FOR_POOLS = "Lower --kv-cache-memory-bytes, or end other processes that use the GPU"
FOR_WEIGHTS = (
    "Cut the model with --tensor-parallel-size or --pipeline-parallel-size, serve a checkpoint of "
    "smaller weights, or end other processes that use the GPU (nvidia-smi shows them)"
)


def out_of_memory(
    error: torch.OutOfMemoryError, doing: str, remedy: str = FOR_STEPS
) -> PenstockError:
    """A PenstockError that names what failed (`doing`), the memory that was missing, and the
    remedy.
    """
    text = str(error)
    head, found, _ = text.partition(" is free.")
    reason = head + " is free" if found else text.partition(". GPU")[0]
    return PenstockError(f"the GPU has too little memory for {doing}: {reason}. {remedy}")
