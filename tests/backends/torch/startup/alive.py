"""Bytes of the tensors that are alive at once, and of the GPU that torch would keep for them. Steps
over meta tensors allocate as those of a GPU do, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.backends.torch.checks import Limits
from penstock.backends.torch.kv.pool import Layout
from penstock.backends.torch.load.checkpoint import Checkpoint
from penstock.backends.torch.shard import whole
from penstock.backends.torch.startup.compiling import Rehearsal, recorded
from penstock.backends.torch.startup.warm_up import largest, step
from penstock.model import load_model
from penstock.model.kv_groups import kv_groups
from penstock.model.spec import Attention, DecoderSpec, LatentAttention
from tests.backends.torch.caching import Allocator, Storages

BLOCK = 16


class Alive(TorchDispatchMode):  # type: ignore[misc]
    """Counts the storages on meta that operations make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Allocator(1 << 40)
        self._storages = Storages(self.memory)

    @property
    def most(self) -> int:
        return self._storages.most

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._take((args, kwargs or {}), there=True)
        made = func(*args, **(kwargs or {}))
        self._take(made, there=False)
        return made

    def _take(self, value: Any, *, there: bool) -> None:
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self._storages.take(tensor.untyped_storage(), there=there)


class StepMemory:
    """A model over meta tensors: a layer of each kind."""

    def __init__(self, path: Path, tokens: int, slots: int, dtype: torch.dtype) -> None:
        info = load_model(path)
        self.spec, self.shard, self.dtype = info.spec, whole(info.spec), dtype
        self.limits = Limits(
            slots=slots,
            tokens=tokens,
            vocab=info.spec.vocab,
            max_position=info.spec.max_position,
            block_size=BLOCK,
            groups=(),
            last_sampled=True,
        )
        layouts = [
            _layout(info.spec, len(g.layers)) for g in kv_groups(info.spec, self.shard.layers)
        ]
        checkpoint = Checkpoint(Path(info.paths[0]))
        given = (info.spec, info.weights, checkpoint, self.shard, self.limits, layouts, dtype)
        self.rehearsal = Rehearsal(*given, captures=False)
        self.model, self.slots = self.rehearsal.made()

    def alive(self, *, draws: bool) -> Alive:
        """In the largest step of a server."""
        watch, width = Alive(), -(-self.limits.max_position // BLOCK)
        rows = largest(self.model, self.slots, self.limits)[0]
        given = (self.model, self.slots, self.limits, None, rows, width)

        def work() -> None:
            with torch.inference_mode(), watch:
                step(*given, draws=draws)

        recorded(work)
        return watch


def _layout(spec: DecoderSpec, layers: int) -> Layout:
    mixer = spec.first_attention
    if isinstance(mixer, LatentAttention):
        return Layout(layers, 1, mixer.kv_rank + mixer.rope_dim, True, BLOCK, torch.bfloat16)
    assert isinstance(mixer, Attention)
    return Layout(layers, mixer.kv_heads, mixer.head_dim, False, BLOCK, torch.bfloat16)
