"""Kernels that are compiled ahead are those that a launch looks for."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton._C.libtriton import native_specialize_impl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import CUDABackend  # noqa: E402

from penstock.backends.torch import backend as backend_module  # noqa: E402
from penstock.backends.torch import kernels  # noqa: E402
from penstock.backends.torch.backend import TorchBackend  # noqa: E402
from penstock.backends.torch.kernels import decode, language, norm  # noqa: E402
from penstock.backends.torch.load.checkpoint import Checkpoint  # noqa: E402
from penstock.backends.torch.load.recipes import Source  # noqa: E402
from penstock.backends.torch.startup import compiling, tuning  # noqa: E402
from penstock.backends.torch.startup.compiling import (  # noqa: E402
    Launch,
    Rehearsal,
    by_key,
    compile_ahead,
    recorded,
)
from penstock.backends.torch.startup.warm_up import warm_up  # noqa: E402
from penstock.backends.torch.step.captures import Captures  # noqa: E402
from penstock.backends.torch.step.graphs import DecodeGraphs  # noqa: E402
from penstock.backends.torch.step.prompt_graphs import PromptGraphs  # noqa: E402
from penstock.engine.startup import read_model  # noqa: E402
from tests.backends.torch.driving import backend  # noqa: E402
from tests.backends.torch.quantised import with_fp8, with_mxfp4  # noqa: E402
from tests.backends.torch.ranks.test_ranks import cut  # noqa: E402
from tests.families import FAMILIES  # noqa: E402
from tests.limits import HANG  # noqa: E402

CPU = torch.device("cpu")
SIZES = {"dtype": "auto", "max_num_batched_tokens": 512}


class Gpu:
    """Triton's driver, of a GPU on which nothing can be loaded."""

    utils = SimpleNamespace(
        get_device_properties=lambda _: {"max_shared_mem": 227 << 10},
        load_binary=lambda *_: (1, 1, 32, 0, 1024),
        unload_module=lambda _: None,
    )
    launcher_cls = staticmethod(lambda *_: None)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU as far as its numbers go: those of an H100 for tensors on the CPU too."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    # On a GPU no weight lies where a file was mapped.
    monkeypatch.setattr(Source, "on_device", lambda _, host: host.clone())
    # So that the products of a tiny model are measured.
    monkeypatch.setattr(tuning, "LEAST_BYTES", 0)
    # So that the few tokens of a tiny model are worth several splits.
    monkeypatch.setattr(decode, "SPLIT_TOKENS", 16)
    numbers = {"multiprocessors": lambda _: 132, "shared_memory": lambda _: 227 << 10}
    numbers |= {"hopper": lambda _: True}
    for module in kernel_modules():
        if module is language:
            continue
        for name, number in numbers.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, number)


def kernel_modules() -> list[Any]:
    path = kernels.__path__
    names = [f"{kernels.__name__}.{each.name}" for each in pkgutil.iter_modules(path)]
    return [importlib.import_module(name) for name in names]


def launched(loaded: TorchBackend, seen: Callable[[Launch], None]) -> None:
    """The warm-up over real tensors of the CPU, whose kernels leave zeros."""
    with pytest.MonkeyPatch.context() as patch:
        for module in kernel_modules():
            if hasattr(module, "launches"):
                patch.setattr(module, "launches", lambda _: True)

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
            assert grid is not None
            assert not warmup
            seen(Launch(kernel, args, constants))

        patch.setattr(triton.JITFunction, "run", run)
        # What no kernel writes would be read as indices.
        patch.setattr(torch, "empty", torch.zeros)
        # The CPU has no product with another type of its sums.
        patch.setattr(torch, "mm", lambda x, y, out_dtype: x.to(out_dtype) @ y.to(out_dtype))
        given = (loaded._model, loaded._on_device)
        kinds = (DecodeGraphs(*given), PromptGraphs(*given, loaded._limits.tokens))
        captures = Captures(loaded._model, run_alone, kinds) if alone(loaded) else None
        warm_up(*given, loaded._limits, captures=captures)


def alone(loaded: TorchBackend) -> bool:
    return loaded._spec.has_whole_steps


def run_alone(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """What a capture launches."""
    result = work()
    return lambda: result


def rehearsal_of(loaded: TorchBackend, path: str) -> Rehearsal:
    info = read_model(loaded._config)
    own = loaded._spec
    shared = (own.shard, loaded._limits, own.layouts, own.dtype, alone(loaded))
    return Rehearsal(info.spec, info.weights, Checkpoint(Path(path)), *shared)


def path_of(loaded: TorchBackend) -> str:
    return str(read_model(loaded._config).paths[0])


def keys(launches: Sequence[Launch]) -> set[str]:
    """What Triton looks a kernel up by: types, alignments, constants."""
    found = set()
    for launch in launches:
        given = zip(launch.kernel.params, launch.args, strict=False)
        types = [
            native_specialize_impl(CUDABackend, arg, False, not param.do_not_specialize, True)
            for param, arg in given
        ]
        found.add(f"{launch.kernel.fn.__name__} {types} {sorted(launch.constants.items())}")
    return found


@pytest.mark.parametrize("family", [*FAMILIES, "deepseek3.gguf", "gptoss.gguf", "llama3.gguf"])
def test_a_rehearsal_launches_what_the_warm_up_does(family: str) -> None:
    with backend(family, **SIZES) as loaded:
        assert isinstance(loaded, TorchBackend)
        real: list[Launch] = []
        launched(loaded, real.append)
        found = recorded(rehearsal_of(loaded, path_of(loaded)).run)
        assert keys(found) == keys(real)
        assert len(keys(found)) >= 10


@pytest.mark.parametrize("form", ["fp8", "mxfp4"])
def test_a_rehearsal_knows_the_forms_of_codes(form: str, tmp_path: Path) -> None:
    model = with_fp8("qwen3moe", tmp_path) if form == "fp8" else with_mxfp4(tmp_path)
    test_a_rehearsal_launches_what_the_warm_up_does(model)


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_each_rank_rehearses_its_own_part(family: str) -> None:
    with cut(family, 2, 2, dtype="auto") as ranks:
        for rank in ranks.ranks:
            shard, found = rank._spec.shard, recorded(rehearsal_of(rank, path_of(rank)).run)
            names = {launch.kernel.fn.__name__ for launch in found}
            assert {"_attend_prefill", "_product"} <= names
            assert ("_draw_rows" in names) == (shard.has_head and shard.rank == 0)


def test_a_launch_finds_what_was_compiled_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's cache on the disk, and first in that of the process."""
    hits: list[bool] = []
    # A compiler takes a second for some.
    monkeypatch.setattr(tuning, "LEAST_BYTES", 1 << 20)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit)
    )
    triton.runtime.driver.set_active(Gpu())
    used: dict[Any, Any] = {}
    with backend("llama", **SIZES) as loaded:
        assert isinstance(loaded, TorchBackend)
        run = triton.JITFunction.run

        def looked_up(launch: Launch) -> None:
            used[launch.kernel.fn] = launch.kernel
            run(launch.kernel, *launch.args, grid=(1,), warmup=True, **launch.constants)

        compile_ahead(rehearsal_of(loaded, path_of(loaded)).run, CPU, 2).result(HANG)
        compiled = len(hits)
        assert compiled > 10
        assert not any(hits)
        launched(loaded, looked_up)
        assert len(hits) == compiled, "a launch did not find its kernel in the process"
        for kernel in used.values():
            kernel.device_caches.clear()
        launched(loaded, looked_up)
        assert len(hits) > compiled
        assert all(hits[compiled:]), "a launch did not find its kernel on the disk"


@pytest.mark.parametrize(("failures", "compiles"), [(0, True), (4, True), (5, False)])
def test_a_syntax_tree_that_python_refuses_is_made_again(failures: int, compiles: bool) -> None:
    """CPython 3.11 takes the trees of two threads for one that is too deep."""
    errors = iter([SystemError("AST constructor recursion depth mismatch")] * failures)

    def warmup(*_: object, **__: object) -> str:
        for error in errors:
            raise error
        return "code"

    launch = Launch(SimpleNamespace(warmup=warmup), (), {})
    if compiles:
        assert launch.compile() == "code"
    else:
        with pytest.raises(SystemError, match="depth mismatch"):
            launch.compile()


def refused() -> None:
    raise RuntimeError("no such shape")


def test_an_error_ahead_of_the_warm_up_is_in_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert compile_ahead(refused, CPU, 1).result(HANG) is False
    (record,) = caplog.records
    assert "compiled by the warm-up" in record.message
    assert "no such shape" in record.message


def test_a_kernel_that_fails_leaves_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def make_ready(launches: Sequence[Launch]) -> None:
        name = launches[0].kernel.fn.__name__
        if name == "_norm":
            refused()
        compiled.append(name)

    monkeypatch.setattr(compiling, "_make_ready", make_ready)
    triton.runtime.driver.set_active(Gpu())
    with backend("llama", **SIZES) as loaded, caplog.at_level(logging.WARNING):
        assert isinstance(loaded, TorchBackend)
        compile_ahead(rehearsal_of(loaded, path_of(loaded)).run, CPU, 2).result(HANG)
    assert len(caplog.records) == 1
    assert {"_draw_rows", "_attend_prefill", "_merge"} <= set(compiled)


def test_meta_tensors_are_of_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: torch.device | None) -> SimpleNamespace:
        count = 132 if device is None else 108
        return SimpleNamespace(multi_processor_count=count, shared_memory_per_block_optin=count)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    for number in (language.multiprocessors, language.shared_memory):
        found = number.__wrapped__
        assert [found(torch.device(*each)) for each in (("meta",), ("cuda", 0))] == [132, 108]


def test_launches_beside_a_rehearsal_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(triton.JITFunction, "run", lambda *_, **__: calls.append("launched"))

    def work() -> None:
        for device in ("cpu", "meta"):
            x, weight = torch.ones(2, 8, device=device), torch.ones(8, device=device)
            norm.rms_norm_triton(x, weight, 1e-6)

    (launch,) = recorded(work)
    assert calls == ["launched"]
    assert launch.kernel.fn.__name__ == "_norm"
    assert by_key([launch, launch]) == [[launch, launch]]


def test_the_warm_up_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    done: Future[None] = Future()
    monkeypatch.setattr(done, "result", lambda: order.append("compiled"))
    monkeypatch.setattr(backend_module, "warm_up", lambda *_: order.append("launched"))
    with backend("llama") as loaded:
        assert isinstance(loaded, TorchBackend)
        loaded._compiled = done
        loaded._warm_up()
    assert order == ["compiled", "launched"]


def test_a_rehearsal_imports_no_compiler_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # To look for the attribute imports the module.
    monkeypatch.delattr(torch, "_dynamo", raising=False)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    seen: list[object] = []

    def work() -> None:
        # Python over meta tensors, in all versions.
        torch.cumsum(torch.empty(4, dtype=torch.int32, device="meta"), 0)
        seen.append(sys.modules["torch._dynamo"].disable(work, recursive=True, wrapping=False))

    assert recorded(work) == []
    assert seen == [work]
    assert "torch._dynamo" not in sys.modules
