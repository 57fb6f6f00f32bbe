"""Bytes of tensors alive at once in the largest step of tiny models, with kernels in Triton's
interpreter: a program of its own, because Triton decides at its import what a kernel is.

Usage: TRITON_INTERPRET=1 python live_bytes.py float32|bfloat16 TOKENS FAMILY... Prints JSON:
[family, alive, counted]. In bfloat16 experts are computed by torch's grouped product, as on a GPU.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from penstock.backends.torch import kernels
from penstock.backends.torch.backend import TorchBackend
from penstock.backends.torch.memory import step_bytes
from penstock.model.spec import Experts
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.backends.torch.driving import Driver, Part, backend
from tests.real_ranks import VOCAB

SEQUENCES = 4


class Alive(TorchDispatchMode):
    """Counts the storages that operations make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for given in tree_leaves((args, kwargs or {})):
            if isinstance(given, torch.Tensor):
                self._known.add(given.untyped_storage()._cdata)
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def launch_all() -> None:
    """Take the kernels for tensors on the CPU too."""
    for module in pkgutil.iter_modules(kernels.__path__):
        loaded = importlib.import_module(f"{kernels.__name__}.{module.name}")
        if hasattr(loaded, "launches"):
            loaded.launches = lambda _: True


def measure(dtype: str, tokens: int, families: list[str]) -> Iterator[tuple[str, int, int]]:
    dtypes = {"dtype": "auto"} if dtype == "bfloat16" else {}
    for family in families:
        with backend(family, max_num_batched_tokens=tokens, **dtypes) as loaded:
            assert isinstance(loaded, TorchBackend)
            assert str(loaded._dtype) == f"torch.{dtype}"
            alive, compute = Alive(), loaded._compute_rows

            def watched(*args: Any, alive: Alive = alive, compute: Any = compute) -> None:
                with alive:
                    compute(*args)

            loaded._compute_rows = watched
            driver = Driver(loaded)
            parts = []
            for slot in range(SEQUENCES):
                driver.register(slot)
                prompt = [(7 * slot + 3 * at) % VOCAB for at in range(tokens // SEQUENCES)]
                parts.append(Part(slot, prompt))
            loaded.submit(driver.plan(*parts)).result(600.0)
            counted = step_bytes(loaded._spec, loaded._shard, tokens, loaded._dtype)
            yield family, alive.most, counted
            if dtype == "bfloat16" and has_experts(loaded):
                assert GROUPED, "torch's grouped product was not taken"
                GROUPED.clear()


GROUPED: list[int] = []
"""Rows of the grouped products."""


def take_grouped() -> None:
    """Take torch's grouped product for tensors on the CPU too."""
    torch.cuda.get_device_capability = lambda _: (9, 0)
    product = torch.nn.functional.grouped_mm

    def counted(x: torch.Tensor, *words: Any, **options: Any) -> torch.Tensor:
        GROUPED.append(len(x))
        return product(x, *words, **options)

    torch.nn.functional.grouped_mm = counted


def has_experts(loaded: TorchBackend) -> bool:
    return any(isinstance(layer.feed_forward, Experts) for layer in loaded._spec.layers)


if __name__ == "__main__":
    launch_all()
    take_grouped()
    print(json.dumps(list(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))))
