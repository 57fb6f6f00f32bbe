"""Loads the weights of one rank from a checkpoint to its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from penstock.backends.torch.load.attention import load_mixer
from penstock.backends.torch.load.checkpoint import Checkpoint
from penstock.backends.torch.load.codes import by_inputs
from penstock.backends.torch.load.feed_forward import load_feed_forward
from penstock.backends.torch.load.recipes import EXPERT, Source, tensor_names
from penstock.backends.torch.load.rope import Rotation, rotation
from penstock.backends.torch.load.weights import (
    LayerWeights,
    Loader,
    NormWeights,
    Roles,
    Weights,
    needed,
    tensors_of,
    top_roles,
)
from penstock.backends.torch.shard import Shard
from penstock.core import PenstockError
from penstock.core.progress import LoadProgress, Report
from penstock.model.spec import (
    Attention,
    DecoderSpec,
    Experts,
    FactorsScaling,
    Norm,
    WeightRecipes,
)

WHOLE_ROWS = ("o", "down")
"""Suffixes of the roles of matrices that are sharded by columns. Of such a matrix a rank reads
whole rows.
"""


def load_weights(
    source: Source, spec: DecoderSpec, recipes: WeightRecipes, shard: Shard, longest: int
) -> Weights:
    """Load the weights, with rotation tables for `longest` positions. Raises PenstockError, which
    names a missing or damaged tensor, or an unsupported form.
    """
    loader, top = Loader(source, spec, shard), top_roles(recipes)
    with ThreadPoolExecutor(1, "rotations") as beside:
        # Long tables take half a second of CPU time and read no files, so they are computed
        # concurrently.
        tables = beside.submit(_tables, loader, top, longest)
        weights = _weights(loader, recipes, top)
        source.settle()
        weights = replace(weights, rotations=_on_device(source, tables.result()))
    source.check_finite()
    return weights


def _weights(loader: Loader, recipes: WeightRecipes, top: Roles) -> Weights:
    """All weights except the rotations. Matrices have contents only after `Source.settle`."""
    source, spec, shard = loader.source, loader.spec, loader.shard
    layers = tuple(_layer(loader, index, recipes.layers[index]) for index in shard.layers)
    own, hidden = shard.vocab, spec.hidden
    embed = head = positions = score = None
    if shard.embeds or (shard.has_head and spec.tied_embeddings):
        embed = source.matrix(top["embed"], spec.vocab, hidden, own)
    if shard.has_head:
        head = embed if spec.tied_embeddings else None
        if not spec.tied_embeddings:
            head = source.matrix(needed(top, "head"), spec.vocab, hidden, own)
        if spec.labels is not None:
            score = source.on_device(source.host_matrix(needed(top, "score"), spec.labels, hidden))
    if spec.learned_positions and shard.embeds:
        positions = source.matrix(needed(top, "positions"), spec.max_position, hidden)
    return Weights(
        layers=layers,
        rotations=(),
        kv_groups=loader.kv_groups,
        embed=embed,
        positions=positions,
        head=head,
        final_norm=loader.norm(spec.final_norm, top, "final_norm", hidden),
        score=score,
    )


def _layer(loader: Loader, index: int, roles: Roles) -> LayerWeights:
    layer, hidden = loader.spec.layers[index], loader.spec.hidden

    def norm(norm: Norm | None, role: str) -> NormWeights | None:
        return None if norm is None else loader.norm(norm, roles, role, hidden)

    mixer_norm = norm(layer.mixer_norms.before, "mixer_norm")
    feed_forward_norm = norm(layer.feed_forward_norms.before, "feed_forward_norm")
    if mixer_norm is None or feed_forward_norm is None:
        raise PenstockError("the torch backend has no sublayer without a norm before it")
    return LayerWeights(
        mixer_norm=mixer_norm,
        mixer=load_mixer(loader, index, layer, roles),
        mixer_after=norm(layer.mixer_norms.after, "mixer_norm_after"),
        feed_forward_norm=feed_forward_norm,
        feed_forward=load_feed_forward(loader, layer.feed_forward, roles),
        feed_forward_after=norm(layer.feed_forward_norms.after, "feed_forward_norm_after"),
    )


def _tables(loader: Loader, top: Roles, longest: int) -> list[Rotation]:
    """The rotation tables (cos and sin) of all layers, in host memory."""
    mixer = loader.spec.first_attention
    head = mixer.head_dim if isinstance(mixer, Attention) else mixer.rope_dim
    made = []
    for rope in loader.ropes:
        dims, stored = rope.dims or head, None
        if isinstance(rope.scaling, FactorsScaling):
            stored = loader.source.host_vector(needed(top, "rope_factors"), dims // 2)
        made.append(rotation(rope, dims, longest, stored))
    return made


def _on_device(source: Source, tables: Sequence[Rotation]) -> tuple[Rotation, ...]:
    return tuple(Rotation(*map(source.on_device, (each.cos, each.sin))) for each in tables)


def bytes_to_read(
    checkpoint: Checkpoint, spec: DecoderSpec, recipes: WeightRecipes, shard: Shard
) -> int:
    """Approximate number of bytes that a rank reads from the checkpoint: whole tensors of its
    recipes, or its share of their rows.
    """
    top = top_roles(recipes)
    named = {recipe.tensor: shard.ranks for recipe in top.values()}
    if not shard.embeds and not spec.tied_embeddings:
        named.pop(top["embed"].tensor, None)
    if not shard.has_head and "head" in top:
        named.pop(top["head"].tensor, None)
    for index in shard.layers:
        form = spec.layers[index].feed_forward
        experts = shard.experts or range(form.experts if isinstance(form, Experts) else 0)
        for role, recipe in recipes.layers[index].items():
            # A rank that holds columns reads whole rows, and a rank that holds whole experts reads
            # all of their rows. Stored rows may be the matrix's columns.
            stacked = EXPERT in recipe.tensor
            turned = recipe.codes is not None and by_inputs(recipe.codes)
            whole = role.endswith(WHOLE_ROWS) != turned or (stacked and shard.experts is not None)
            for name in tensor_names(recipe):
                each = experts if stacked else [0]
                for own in (name.replace(EXPERT, str(expert)) for expert in each):
                    named[own] = 1 if whole else shard.ranks
    found = ((checkpoint[name].size, ranks) for name, ranks in named.items() if name in checkpoint)
    return sum(size // ranks for size, ranks in found)


@contextmanager
def reported(total: int, report: Report) -> Iterator[Callable[[int], None]]:
    """Inside the block, report the load's progress: the yielded function takes numbers of bytes
    read. `total` is an estimate, so the last byte is reported only at the end.
    """
    progress, left = LoadProgress(total, report), total

    def add(count: int) -> None:
        nonlocal left
        count = max(0, min(count, left - 1))
        left -= count
        progress.add(count)

    yield add
    progress.add(left)


def weight_bytes(weights: Weights) -> int:
    """Bytes of all weights on the device. Tensors that share a storage count once."""
    storages = (each.untyped_storage() for each in tensors_of(weights))
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
