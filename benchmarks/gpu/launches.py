"""Measures the host time of a step with prompts: launched kernel by kernel, and replayed as a CUDA
graph.

The model has the shape of a published one, with tensors that have no data. Triton launches take
their whole path except for the GPU driver. torch's operations are only counted, because they take
another path for such tensors.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

from benchmarks.gpu.shapes import SHAPES, write_checkpoint
from penstock.backends.torch import kernels
from penstock.backends.torch.inputs import order_of, pack
from penstock.backends.torch.kernels import language
from penstock.backends.torch.kv.pool import Layout, make_pools
from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.load.checkpoint import Checkpoint
from penstock.backends.torch.load.load import load_weights
from penstock.backends.torch.load.recipes import Source
from penstock.backends.torch.ranks.ranks import Ranks
from penstock.backends.torch.sampling.sampling import Draws
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.shard import whole
from penstock.backends.torch.step.captures import Captures
from penstock.backends.torch.step.prompt_graphs import PromptGraphs
from penstock.core import StepPlan
from penstock.model import load_model

BLOCK, LONGEST, SLOTS, BUDGET = 64, 4096, 256, 8192
META = torch.device("meta")
H100 = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=227 << 10)
MADE = ("empty", "empty_like", "empty_strided", "new_empty")
"""Names of operations that only allocate memory."""


class Driver:
    """A driver for Triton that simulates a GPU: a launch returns at once."""

    def __init__(self) -> None:
        self.launches, self.seconds = 0, 0.0

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def launch(self, *_: Any) -> None:
        self.launches += 1


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts those torch operations that launch kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(
            each.alias_info and not each.alias_info.is_write for each in func._schema.returns
        )
        self.count += not views and func.overloadpacket.__name__ not in MADE
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_runs() -> Iterator[Driver]:
    """Context that simulates an H100. Triton looks kernels up as usual, but never compiles them."""
    driver = Driver()
    kernel = SimpleNamespace(
        run=driver.launch, function=0, packed_metadata=(), launch_metadata=lambda *_: None
    )

    def compiled(function: Any, key: Any, _signature: Any, device: int, *_: Any) -> Any:
        return function.device_caches[device][0].setdefault(key, kernel)

    modules = [
        import_module(f"{kernels.__name__}.{m.name}") for m in iter_modules(kernels.__path__)
    ]
    functions = [f for m in modules for f in vars(m).values() if isinstance(f, triton.JITFunction)]
    own = (triton.JITFunction, "_do_compile"), (torch.cuda, "get_device_properties")
    own += ((torch.cuda, "get_device_capability"),)
    own += ((triton.JITFunction, "run"),)
    run = triton.JITFunction.run

    def timed(*args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return run(*args, **options)
        finally:
            driver.seconds += time.thread_time() - began

    given: tuple[Any, ...] = (compiled, lambda *_: H100, lambda *_: (9, 0), timed)
    before = [getattr(owner, name) for owner, name in own]
    active = triton.runtime.driver._active
    numbers = (language.multiprocessors, language.shared_memory)
    try:
        triton.runtime.driver.set_active(driver)
        for (owner, name), value in zip(own, given, strict=True):
            setattr(owner, name, value)
        yield driver
    finally:
        for (owner, name), value in zip(own, before, strict=True):
            setattr(owner, name, value)
        triton.runtime.driver._active = active
        for number in numbers:
            number.cache_clear()
        for function in functions:
            function.device_caches.clear()


def model_of(name: str, directory: Path) -> tuple[Model, DeviceSlots]:
    write_checkpoint(directory, SHAPES[name], LONGEST)
    info = load_model(directory)
    source = Source(Checkpoint(Path(info.paths[0])), torch.bfloat16)
    shard, shape = whole(info.spec), SHAPES[name]
    weights = load_weights(source, info.spec, info.weights, shard, LONGEST)
    layout = Layout(shape.layers, shape.kv_heads, shape.d, False, BLOCK, torch.bfloat16)
    pools = make_pools([layout], [SLOTS], META)
    slots = DeviceSlots(SLOTS, LONGEST // BLOCK, 1, META)
    return Model(info.spec, shard, weights, pools, Ranks(), torch.bfloat16), slots


def plan_of(decodes: int, prompt: int) -> StepPlan:
    lengths = array("i", [prompt] + [1] * decodes)
    count = len(lengths)
    return StepPlan(
        1,
        slots=array("i", range(count)),
        starts=array("i", [0] + [1024] * decodes),
        lengths=lengths,
        sample=[True] * count,
        tokens=array("i", [5]) * (prompt + decodes),
    )


def least(work: Callable[[], object], repeats: int) -> float:
    """CPU seconds of the fastest of `repeats` calls, after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found[1:])


def measure(name: str, decodes: int, prompt: int, repeats: int) -> dict[str, Any]:
    """Measure a step of one prompt and `decodes` decodes without the output head: the number of
    launches, the CPU time of one Triton launch, and the CPU time of the replayed step.
    """
    plan = plan_of(decodes, prompt)
    order = order_of(plan)
    draws = Draws(range(decodes + 1), range(decodes + 1), [prompt] * (decodes + 1))
    with tempfile.TemporaryDirectory() as directory, nothing_runs() as driver:
        model, slots = model_of(name, Path(directory))
        graphs = PromptGraphs(model, slots, BUDGET)

        def launch() -> Tensor:
            inputs = pack(plan, order, BLOCK, META)
            return model.forward(inputs, slots.tables(inputs.slots, inputs.blocks), slots.last)

        with torch.inference_mode():
            launch()
            found = []
            for _ in range(repeats):
                driver.launches, driver.seconds = 0, 0.0
                launch()
                found.append(driver.seconds / driver.launches)
            ours, operations = driver.launches, Operations()
            with operations:
                launch()
            captures = Captures(model, replayed, [graphs])
            for each in graphs.needed(plan, len(draws.rows)):
                captures.replay(each)
            replay = least(lambda: graphs.draw(plan, order, draws), 20 * repeats)
    return {
        "model": name,
        "step": f"{prompt} + {decodes}" if decodes else str(prompt),
        "triton": ours,
        "torch": operations.count,
        "each_us": round(min(found) * 1e6, 1),
        "replayed_us": round(replay * 1e6),
    }


def replayed(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    result = work()
    return lambda: result


def lines(found: list[dict[str, Any]], table: Callable[..., list[str]]) -> list[str]:
    columns = ("model", "tokens + decodes", "Triton", "torch", "of Triton, us", "replayed, us")
    return [
        "",
        "## Steps with prompts, launched and replayed",
        "",
        "Kernels of Triton and operations of torch of one step up to the head, and the host's time",
        "for a launch of the former without what the driver takes (with it, on an H100's host,",
        "about 36 us for any launch). Replayed, with the draw, the same step is a copy, two graphs",
        "and a copy of the tokens: `replayed` is the host's time for it without what CUDA takes.",
        "",
        *table(columns, [list(each.values()) for each in found]),
    ]
