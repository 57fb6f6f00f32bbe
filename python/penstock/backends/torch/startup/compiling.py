"""Ahead-of-time compilation of Triton kernels on threads, while the weights are read.

Triton compiles a kernel at its first launch, on the launching thread: sequentially, which takes
seconds at the first start on a machine. Here, the warm-up runs over meta tensors (shapes without
data) and its launches are recorded. Each launch is then compiled into Triton's own caches, exactly
as Triton would. Triton, LLVM and ptxas run concurrently with other Python threads.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from penstock.backends.torch.checks import Limits
from penstock.backends.torch.kernels.language import triton
from penstock.backends.torch.kv.pool import Layout, make_pools
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.load.checkpoint import Checkpoint
from penstock.backends.torch.load.load import load_weights
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.ranks.ranks import Ranks
from penstock.backends.torch.runtime import runtime
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.shard import Shard
from penstock.backends.torch.startup.warm_up import Zeroes, warm_up
from penstock.backends.torch.step.captures import Captures
from penstock.backends.torch.step.graphs import DecodeGraphs
from penstock.backends.torch.step.prompt_graphs import PromptGraphs
from penstock.model.kv_groups import kv_groups
from penstock.model.spec import DecoderSpec, WeightRecipes

META = torch.device("meta")
MOST_THREADS = 16
"""Maximum number of compiling threads. More would not help: a model has 15 to 40 kernels, and the
slowest takes as long as several others.
"""
TRIES = 5
"""Attempts to compile a kernel (see `Launch.compile`)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Stand-in for a tensor: the properties on which Triton specialises a kernel, type and 16-byte
    alignment.
    """

    dtype: torch.dtype
    at: int

    def data_ptr(self) -> int:
        return self.at


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]

    @property
    def key(self) -> tuple[object, ...]:
        """Key by which launches are grouped. Launches with different keys never share machine code;
        launches with the same key may.
        """
        return (self.kernel.fn, *sorted(self.constants.items()))

    def compile(self) -> Any:
        """Compile the kernel for these arguments. Retries on SystemError: Python 3.11 counts the
        depth of syntax trees over all threads, and may raise it if two threads build trees at once.
        """
        for _ in range(TRIES - 1):
            with suppress(SystemError):
                return self._compile()
        return self._compile()

    def _compile(self) -> Any:
        return self.kernel.warmup(*self.args, grid=(1,), **self.constants)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rank's warm-up over meta tensors (shapes without data), from its specification alone."""

    spec: DecoderSpec
    recipes: WeightRecipes
    checkpoint: Checkpoint
    shard: Shard
    limits: Limits
    layouts: Sequence[Layout]
    """One per KV group of the shard."""
    dtype: torch.dtype
    captures: bool
    """True if the rank captures graphs of its steps, with and without prompts."""

    def run(self) -> None:
        model, slots = self.made()
        captures = None
        if self.captures:
            kinds = (DecodeGraphs(model, slots), PromptGraphs(model, slots, self.limits.tokens))
            captures = Captures(model, _computed, kinds, logged=False)
        warm_up(model, slots, self.limits, captures=captures)

    def made(self) -> tuple[Model, DeviceSlots]:
        """A model over meta tensors with one layer of each kind (equal layers launch the same
        kernels), and its slots.
        """
        spec, recipes, own = self.spec, self.recipes, self.shard.layers
        kinds = {spec.layers[index]: index for index in own}
        some = replace(spec, layers=tuple(kinds))
        roles = replace(recipes, layers=tuple(recipes.layers[at] for at in kinds.values()))
        shard = replace(self.shard, layers=range(len(kinds)))
        groups = zip(kv_groups(spec, own), self.layouts, strict=True)
        known = {(group.window, group.chunked): layout for group, layout in groups}
        source = Source(self.checkpoint, self.dtype)
        weights = load_weights(source, some, roles, shard, 1)
        layouts = [known[group.window, group.chunked] for group in weights.kv_groups]
        pools = make_pools(layouts, [1] * len(layouts), META)
        width = -(-self.limits.max_position // self.limits.block_size)
        slots = DeviceSlots(self.limits.slots, width, len(layouts), META)
        before = None if shard.embeds else Zeroes(0)
        ranks = Ranks(None if shard.ranks == 1 else _Others(shard.rank), before)
        return Model(some, shard, weights, pools, ranks, self.dtype), slots


def _computed(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Stand-in for a graph capture: runs the work once, as a capture does to warm up, and records
    no graph.
    """
    result = work()
    return lambda: result


@dataclass(frozen=True, slots=True)
class _Others:
    """Stub for the group of a stage's ranks: returns tensors of the correct shapes, without
    communication.
    """

    rank: int

    def sum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, columns: Tensor, widths: list[int]) -> Tensor | None:
        return None if self.rank else columns.new_empty(len(columns), sum(widths))

    def share(self, x: Tensor) -> Tensor:
        return x

    def close(self) -> None:
        """No-op: no connection is open."""


def recorded(work: Callable[[], None]) -> list[Launch]:
    """The kernel launches of `work` over meta tensors, which are recorded and not executed."""
    found: list[Launch] = []
    with _recording(found), _without_dynamo():
        work()
    return found


@contextmanager
def _without_dynamo() -> Iterator[None]:
    """Inside the block, a stub replaces torch._dynamo, whose import takes 1.2 to 2.4 s. Some
    operations over meta tensors are Python functions that import it only to call `disable` on
    themselves.
    """
    name = "torch._dynamo"
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)
    stand_in.disable = lambda function, *_, **__: function  # type: ignore[attr-defined]
    sys.modules[name] = torch._dynamo = stand_in
    try:
        yield
    finally:
        del sys.modules[name], torch._dynamo


@contextmanager
def _recording(found: list[Launch]) -> Iterator[None]:
    launch = triton.JITFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        if not any(isinstance(arg, Tensor) and arg.is_meta for arg in args):
            return launch(kernel, *args, grid=grid, warmup=warmup, **constants)
        found.append(Launch(kernel, tuple(map(_seen, args)), constants))
        return None

    triton.JITFunction.run = run
    try:
        yield
    finally:
        triton.JITFunction.run = launch


def _seen(arg: Any) -> Any:
    """The `Address` of a meta tensor; any other argument unchanged. Storage is aligned to 16 bytes,
    but a view may begin anywhere in it.
    """
    if not isinstance(arg, Tensor):
        return arg
    return Address(arg.dtype, arg.storage_offset() * arg.itemsize % 16)


def compile_ahead(
    rehearsal: Callable[[], None], device: torch.device, threads: int
) -> Future[bool]:
    """Start to compile the kernels that `rehearsal` launches. The future's result is True if all
    were compiled. Errors are only logged: the warm-up compiles missing kernels.
    """
    starter = ThreadPoolExecutor(1, "compile")
    done = starter.submit(_compile_all, rehearsal, device, min(threads, MOST_THREADS))
    starter.shutdown(wait=False)
    return done


def _compile_all(rehearsal: Callable[[], None], device: torch.device, threads: int) -> bool:
    try:
        # The current device of a new thread is the first GPU, so set the device.
        set_device = runtime(device).set_device
        set_device(device)
        with ThreadPoolExecutor(
            threads, "compile", initializer=set_device, initargs=(device,)
        ) as pool:
            # Triton builds its driver module with a C compiler, also concurrently.
            driver = pool.submit(lambda: triton.runtime.driver.active.utils)
            parts = by_key(recorded(rehearsal))
            driver.result()
            for part in [pool.submit(_make_ready, each) for each in parts]:
                part.result()
    except Exception as error:  # noqa: BLE001 - of any kind: the warm-up meets it again, or works
        log.warning("kernels are compiled by the warm-up, one by one: %s", error)
        return False
    return True


def by_key(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Group launches by key. One thread compiles a whole group, so no kernel is compiled twice."""
    parts = defaultdict(list)
    for launch in launches:
        parts[launch.key].append(launch)
    return list(parts.values())


def _make_ready(launches: Sequence[Launch]) -> None:
    for launch in launches:
        # `run` loads the kernel; older versions of Triton call a C compiler for that.
        launch.compile().run  # noqa: B018
