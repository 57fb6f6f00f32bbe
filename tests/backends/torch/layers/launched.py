"""Kernels that a decode step launches on a GPU, counted on the CPU: Triton's launches are noted and
not run, and the operations of torch are counted by what CUDA launches for each.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.backends.torch import kernels
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.kernels import decode
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.step.graphs import decode_inputs, draw_all
from penstock.backends.torch.step.prompt_graphs import PromptGraphs

MEMORY = ("empty", "empty_like", "empty_strided", "new_empty")
"""Operations that make memory alone."""
SEVERAL = {
    # A check for NaN, one for infinity, and what joins them.
    "isfinite": 4,
    # A copy, and the fill.
    "masked_fill": 2,
    # The addresses of the groups, and the product.
    "_grouped_mm": 2,
    "grouped_mm": 2,
    "sort": 3,
}
WIDENED = ("index", "index_put_", "_index_put_impl_")
"""They make 64-bit indices of others first, each by a kernel."""


@dataclass
class Launched(TorchDispatchMode):
    """Counts kernels by name."""

    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.dtype:
            # The CPU has no product of another type.
            made = args[0].float() @ args[1].float()
        else:
            made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        count = SEVERAL.get(name, 1)
        if name in MEMORY:
            # Nothing is launched that would write it, and indices have to be valid.
            count, made = 0, made.zero_()
        if is_view(func) and not copies(made, args):
            count = 0
        if name in WIDENED:
            count += sum(each is not None and each.dtype == torch.int32 for each in args[1])
        if count:
            self.counts[name] += count
        return made


def is_view(func: Any) -> bool:
    """Whether what it gives may be in the memory of what it gets."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def copies(made: Any, given: Any) -> bool:
    known = {each.untyped_storage().data_ptr() for each in tensors(given)}
    return any(each.untyped_storage().data_ptr() not in known for each in tensors(made))


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Noted:
    """In place of a Triton kernel."""

    def __init__(self, name: str, mode: Launched) -> None:
        self._name = name
        self._mode = mode

    def __getitem__(self, _grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *_: object, **__: object) -> None:
        self._mode.counts[self._name] += 1


def launch_noted(patch: pytest.MonkeyPatch, mode: Launched) -> None:
    """Take the path of a GPU of compute capability 9.0 for tensors on the CPU."""
    from triton.runtime.jit import JITFunction

    for found in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"{kernels.__name__}.{found.name}")
        if hasattr(module, "launches"):
            patch.setattr(module, "launches", lambda _: True)
        for name, value in vars(module).copy().items():
            if isinstance(value, JITFunction):
                patch.setattr(module, name, Noted(name, mode))
    patch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    # Tables of a few tokens are worth several splits.
    patch.setattr(decode, "SPLIT_TOKENS", 16)


Step = Callable[[Model, DeviceSlots, int], Callable[[], object]]
"""What a graph of so many rows records."""


def decode_step(model: Model, slots: DeviceSlots, rows: int) -> Callable[[], object]:
    """A graph that draws `rows` tokens."""
    columns = torch.zeros(4, rows, dtype=torch.int32)
    columns[1] = slots.padding
    offsets = torch.arange(rows + 1, dtype=torch.int32)

    def work() -> None:
        inputs = decode_inputs(columns, offsets)
        x = model.forward(inputs, slots.tables(inputs.slots, None), slots.last)
        draw_all(model, slots, x, inputs.slots, inputs.lengths)

    return work


def prompt_step(model: Model, slots: DeviceSlots, tokens: int) -> Callable[[], object]:
    """The graph that takes so many tokens, and that of one draw."""
    graphs = PromptGraphs(model, slots, tokens)
    steps = graphs.largest(), graphs.graph((1, True))
    for each in steps:
        each.clear()
    return lambda: [each.work() for each in steps]


def step_of(loaded: TorchBackend, rows: int, step: Step, layers: int) -> Counter[str]:
    """Kernels of a step of the first layers of a model."""
    model = loaded._model
    weights = replace(model.weights, layers=model.weights.layers[:layers])
    mode = Launched()
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        work = step(replace(model, weights=weights), loaded._on_device, rows)
        launch_noted(patch, mode)
        with mode:
            work()
    return mode.counts


def by_layer(
    loaded: TorchBackend, rows: int, step: Step
) -> tuple[Counter[str], list[Counter[str]]]:
    """Kernels of a step outside of its layers, and those of each layer."""
    layers = len(loaded._model.weights.layers)
    steps = [step_of(loaded, rows, step, n) for n in range(layers + 1)]
    return steps[0], [after - before for before, after in pairwise(steps)]
