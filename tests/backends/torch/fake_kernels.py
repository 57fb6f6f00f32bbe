"""Stand-ins for Triton kernels. The functions that launch one run as they are, its arguments are
checked, and the numbers are those of the references.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.backends.torch import backend, kernels
from penstock.backends.torch.kernels import language
from tests.backends.torch.fake_cuda import OnGpu, mapped, place

INT, LONG, WIDE = torch.int32, torch.int64, torch.float32
TYPES = {
    **dict.fromkeys(("positions", "sequences", "slots", "starts", "lengths", "offsets"), INT),
    **dict.fromkeys(
        ("tables", "ends", "order", "indices", "top_k", "choices", "tokens", "tiles"), INT
    ),
    **dict.fromkeys(("seeds", "data"), LONG),
    **dict.fromkeys(("temperature", "top_p", "min_p", "cos", "sin", "factors"), WIDE),
    **dict.fromkeys(("parts", "sums", "sinks", "correction", "logits"), WIDE),
    **dict.fromkeys(("q_norm", "k_norm"), WIDE),
}
"""Types of the arguments with these names: another one compiles a kernel anew."""
CHECKSUMS = ("_segments", "_joined")
DRAWS = ("_scan", "_narrow", "_list", "_draw_rows")
"""Their logits come as the product gives them, and as rules change them: all are compiled."""
STRIDED = ("q", "k", "v", "tables", "x", "residual", "qkv", "latents", "pool", "logits", "gate_up")
STRIDED += ("codes", "scales", "queries")
"""Arguments that come with their strides, all but that of the last dimension, which is 1."""
COLUMNS = ("gate",)
"""Arguments of one dimension that come with its stride."""


class Kernel:
    """In place of a function of Triton's."""

    def __init__(self, name: str, kernel: Any) -> None:
        self._name = name
        self._names = kernel.arg_names
        self.launched = 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(type(size) is int and size > 0 for size in grid), (self._name, grid)
        assert max(grid[1:], default=0) < 1 << 16, (self._name, grid)
        return self._launch

    def _launch(self, *args: Any, **constants: Any) -> None:
        self.launched += 1
        for name, value in [*zip(self._names, args, strict=False), *constants.items()]:
            if isinstance(value, Tensor):
                # A tensor that is given twice stands for one that there is not.
                self._check(name, value, once=sum(value is other for other in args) == 1)
            else:
                assert type(value) in (int, float, bool, str), (self._name, name, value)

    def _check(self, name: str, tensor: Tensor, *, once: bool) -> None:
        where = f"{name} of {self._name} at {place()}"
        assert isinstance(tensor, OnGpu), f"{where} is in the host's memory"
        wanted = TYPES.get(name, tensor.dtype) if once else tensor.dtype
        any_type = self._name in CHECKSUMS or (name == "logits" and self._name in DRAWS)
        assert tensor.dtype == wanted or any_type, f"{where} is {tensor.dtype}"
        if once and name in COLUMNS:
            assert tensor.ndim == 1, f"{where} has {tensor.ndim} dimensions"
        elif name in STRIDED or not once:
            assert tensor.stride(-1) == 1 or tensor.shape[-1] <= 1, f"{where}: {tensor.stride()}"
        else:
            assert tensor.is_contiguous(), f"{where} is not contiguous: {tensor.stride()}"


def bare(value: Any) -> Any:
    """Its numbers, in the host's memory."""
    return mapped(value, lambda tensor: tensor.host if isinstance(tensor, OnGpu) else tensor)


def wrapped(value: Any) -> Any:
    return mapped(value, OnGpu)


def forms(value: Any) -> Any:
    if isinstance(value, tuple):
        return [forms(item) for item in value]
    return None if value is None else (tuple(value.shape), value.dtype, value.device)


def checked(launch: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **options: Any) -> Any:
        made = forms(launch(*args, **options))
        known = {name: bare(own) for name, own in options.items() if name not in OWN}
        with torch.utils._python_dispatch._disable_current_modes():
            found = reference(*bare(args), **known)
        found = wrapped(found)
        assert forms(found) == made, launch.__name__
        return found

    return both


OWN = ("splits", "scratch")
"""Options that the references have not."""


def install(patch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    """The kernels, by name."""
    names = [found.name for found in pkgutil.iter_modules(kernels.__path__)]
    modules = [importlib.import_module(f"{kernels.__name__}.{name}") for name in names]
    found: dict[str, Kernel] = {}
    replaced: dict[Any, Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            if name.endswith("_triton") and value.__module__ == module.__name__:
                reference = getattr(module, name.replace("_triton", "_reference"))
                replaced[value] = checked(value, reference)
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, language.triton.runtime.JITFunction):
                found[name] = Kernel(name, value)
                patch.setattr(module, name, found[name])
            elif callable(value) and value in replaced:
                patch.setattr(module, name, replaced[value])
    # Which looks for Triton's own functions.
    patch.setattr(backend, "compile_ahead", lambda *_: None)
    return found
