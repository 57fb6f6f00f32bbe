"""A fake GPU: tensors that report it as their device and keep their numbers in the host's memory,
and a watch over every operation.

What CUDA refuses is an error: tensors of both memories in one operation, and in a graph whatever
waits, copies from or to the host, or reads the host's memory. What makes the host wait for the
device is noted. Copies to the host arrive when an event behind them is waited for, not earlier.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.backends.torch.kernels import language, skinny
from penstock.backends.torch.step.captures import Capture
from penstock.backends.torch.step.device import Accelerated
from penstock.config.devices import CUDA, DeviceKind
from tests.backends.torch.caching import Allocator, Storages

GPU = torch.device("cuda", 0)
SOURCES = "penstock/backends/torch/"
WATCH: list[Watch] = []
GRAPHS: list[weakref.ref[CUDAGraph]] = []
POOL = (0, 1)
"""That all graphs of a device share."""
aten = torch.ops.aten


class OnGpu(Tensor):
    """A tensor of the GPU; `host` has its numbers."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> OnGpu:
        assert type(host) is Tensor
        sizes = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        # So that views of tensors of before the mode are what torch takes for views.
        WATCH[-1].storages.take(host.untyped_storage())
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, host.shape, dtype=host.dtype, device=WATCH[-1].device, **sizes
            )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return WATCH[-1].compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        WATCH[-1].wait("tolist")
        return self.host.tolist()

    def record_stream(self, _stream: Stream) -> None:
        """All streams are one."""

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host.untyped_storage()


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the host for the device."""

    what: str
    places: tuple[str, ...]
    """Files and functions of the backend, the innermost first."""
    behind: int
    """Operations that were launched behind what it waits for."""


class Watch(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, device: torch.device = GPU) -> None:
        super().__init__()
        self.device = device
        self.waits: list[Wait] = []
        self.launched = 0
        self.capturing = False
        self.registered: list[range] = []
        """Addresses of the host that are pinned, beside torch's own."""
        self._late: list[tuple[int, Tensor, Tensor]] = []
        """Copies to the host that have not arrived: when they were launched, target and source."""
        self._pinned: set[int] = set()
        self.memory = Allocator(1 << 40)
        self.storages = Storages(self.memory)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.compute(func, args, kwargs or {})

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in SPECIAL:
            return SPECIAL[func](self, *args, **kwargs)
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        given = tensors_in((args, kwargs))
        on_gpu = any(isinstance(own, OnGpu) for own in given)
        if (device := kwargs.get("device")) is not None:
            on_gpu = torch.device(device).type == self.device.type
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if on_gpu:
            self.launched += 1
        hosts = [own for own in given if not isinstance(own, OnGpu)]
        if self.capturing:
            ours = on_gpu and not hosts
            assert ours, f"{func} on the host in a graph, at {place()}"
        if on_gpu:
            self._check(func, args, kwargs, hosts)
        pin = kwargs.pop("pin_memory", False) if "pin_memory" in kwargs else False
        args, kwargs = mapped((args, kwargs), bare)
        made = ON_CPU.get(func, func)(*args, **kwargs)
        if pin:
            if func is aten.empty.memory_format and made.nbytes < 1 << 20:
                made.untyped_storage().fill_(0x81)
            return self.pin(made)
        return wrapped(made, given) if on_gpu else made

    def wait(self, what: str, since: int | None = None) -> None:
        """For all that was launched, or launched up to then."""
        assert not self.capturing, f"a wait in a graph ({what}) at {place()}"
        since = self.launched if since is None else since
        self.waits.append(Wait(what, tuple(places()), self.launched - since))
        self.arrive(since)

    def arrive(self, since: int) -> None:
        done = [each for each in self._late if each[0] <= since]
        self._late = [each for each in self._late if each[0] > since]
        with torch.inference_mode():
            for _, target, source in done:
                target.copy_(source)

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._pinned.add(storage._cdata)
        weakref.finalize(storage, self._pinned.discard, storage._cdata)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        own = tensor.untyped_storage()._cdata in self._pinned
        return own or any(tensor.data_ptr() in each for each in self.registered)

    def copy(self, target: Tensor, source: Tensor, *, non_blocking: bool) -> bool:
        """A copy between host and device; whether it is done at once."""
        inward = isinstance(target, OnGpu)
        assert not self.capturing, f"a copy from or to the host in a graph, at {place()}"
        self.launched += 1
        if not self.is_pinned(source if inward else target):
            self.wait("a copy of memory that is not pinned")
        elif not non_blocking:
            self.wait("a copy")
        elif not inward:
            self._late.append((self.launched, target, source.host.clone()))
            return False
        return True

    def _check(self, func: Any, args: Any, kwargs: Any, hosts: list[Tensor]) -> None:
        if func in INDEXED:
            hosts = self._check_indexed(func, args, hosts)
        elif not UNKNOWN.isdisjoint(func.tags) and kwargs.get("output_size") is None:
            self.wait(str(func))
        # A kernel takes the number of a tensor without dimensions.
        wrong = [each for each in hosts if each.ndim]
        assert not wrong, f"{func} of tensors of the host and of the GPU, at {place()}"

    def _check_indexed(self, func: Any, args: Any, hosts: list[Tensor]) -> list[Tensor]:
        """Tensors of the host that are no indices: torch copies those."""
        indices = [each for each in args[1] if each is not None]
        ours = [each for each in indices if not isinstance(each, OnGpu)]
        assert isinstance(args[0], OnGpu), f"{func} by indices of the GPU, at {place()}"
        number = func is not aten.index.Tensor and not isinstance(args[2], OnGpu)
        masks = any(each.dtype in (torch.bool, torch.uint8) for each in indices)
        if ours or number != masks:
            self.wait(f"{func} by a mask, or with numbers of the host")
        return [each for each in hosts if all(each is not own for own in ours)]


UNKNOWN = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations whose result the host has to see."""
INDEXED = {
    *(aten.index.Tensor, aten.index_put.default),
    *(aten.index_put_.default, aten._index_put_impl_.default),
}


def mapped(value: Any, to: Callable[[Tensor], Tensor]) -> Any:
    """A value with others in place of all tensors in it."""
    if isinstance(value, Tensor):
        return to(value)
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, to) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, to) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: mapped(getattr(value, f.name), to) for f in fields(value)})
    return value


def tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(value, note)
    return found


@cache
def is_composite(func: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def wrapped(made: Any, given: list[Tensor]) -> Any:
    """Results of the GPU: the arguments themselves where an operation gives them."""
    owners = {id(each.host): each for each in given if isinstance(each, OnGpu)}

    def one(tensor: Tensor) -> Tensor:
        owner = owners.get(id(tensor))
        return OnGpu(tensor) if owner is None else owner

    return mapped(made, one)


def places() -> Iterator[str]:
    frame: Any = sys._getframe(1)
    while frame is not None:
        _, own, file = frame.f_code.co_filename.rpartition(SOURCES)
        if own:
            yield f"{file}:{frame.f_code.co_name}"
        frame = frame.f_back


def place() -> str:
    return next(places(), "a test")


def bare(x: Tensor) -> Tensor:
    return x.host if isinstance(x, OnGpu) else x


def copied(watch: Watch, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    apart = isinstance(target, OnGpu) != isinstance(source, OnGpu)
    watch.launched += isinstance(target, OnGpu)
    if not apart or watch.copy(target, source, non_blocking=non_blocking):
        bare(target).copy_(bare(source))
    return target


def converted(
    watch: Watch, source: Tensor, *, device: Any = None, non_blocking: bool = False, **kwargs: Any
) -> Tensor:
    assert not kwargs.pop("pin_memory", False)
    outward = isinstance(source, OnGpu)
    inward = outward if device is None else torch.device(device).type == watch.device.type
    made = aten._to_copy.default(bare(source), **kwargs)
    made = OnGpu(made) if inward else made
    watch.launched += inward
    if inward != outward:
        watch.copy(made, source, non_blocking=non_blocking)
    return made


def pinned(watch: Watch, source: Tensor, device: Any = None) -> Tensor:
    assert not isinstance(source, OnGpu), "only memory of the host can be pinned"
    return watch.pin(source.clone())


def summed(watch: Watch, part: OnGpu, _kind: str, _group: str, out: OnGpu) -> OnGpu:
    """The sum through symmetric memory, of one rank."""
    out.host.copy_(part.host)
    return out


SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.copy_.default: copied,
    aten._to_copy.default: converted,
    aten.pin_memory.default: pinned,
    aten._pin_memory.default: pinned,
    aten.is_pinned.default: lambda watch, tensor, device=None: watch.is_pinned(tensor),
    aten.lift_fresh.default: lambda watch, tensor: tensor,
}
ON_CPU = {aten.mm.dtype: lambda x, y, dtype: x.to(dtype) @ y.to(dtype)}
"""What torch's CPU device has not."""
if hasattr(torch.ops.symm_mem, "one_shot_all_reduce_out"):
    SPECIAL[torch.ops.symm_mem.one_shot_all_reduce_out.default] = summed


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self._at = 0

    def record(self, stream: Stream | None = None) -> None:
        assert not WATCH[-1].capturing, "an event in a graph"
        self._at = WATCH[-1].launched

    def query(self) -> bool:
        WATCH[-1].arrive(self._at)
        return True

    def synchronize(self) -> None:
        WATCH[-1].wait("an event", self._at)

    def elapsed_time(self, _end: Event) -> float:
        return 1.0


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = torch.device(device)

    def synchronize(self) -> None:
        WATCH[-1].wait("a stream")

    def query(self) -> bool:
        WATCH[-1].arrive(WATCH[-1].launched)
        return True

    def wait_event(self, _event: Event) -> None:
        """All streams are one."""

    def record_event(self) -> Event:
        event = Event()
        event.record()
        return event


class CUDAGraph:
    """A replay does the work again, by `again`."""

    def __init__(self) -> None:
        self.again: Callable[[], Any] = lambda: None
        self._pool: tuple[int, int] = (0, len(GRAPHS) + 2)
        GRAPHS.append(weakref.ref(self))

    def capture_begin(self, pool: tuple[int, int] | None, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self._pool = self._pool if pool is None else pool
        pools = WATCH[-1].memory.pools
        pools[self._pool] += 1
        weakref.finalize(self, pools.subtract, [self._pool])
        self._capture = capturing(self._pool)
        self._capture.__enter__()

    def capture_end(self) -> None:
        self._capture.__exit__(None, None, None)

    def replay(self) -> None:
        with capturing(self._pool):
            self.again()


@contextmanager
def capturing(pool: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """A capture, whose tensors lie in a pool of graphs."""
    watch = WATCH[-1]
    assert not watch.capturing
    watch.capturing = True
    try:
        with owning(pool):
            yield
    finally:
        watch.capturing = False


@contextmanager
def owning(owner: Hashable) -> Iterator[None]:
    """Tensors are made in memory of a stream, or of a pool."""
    memory = WATCH[-1].memory
    before, memory.owner = memory.owner, owner
    try:
        yield
    finally:
        memory.owner = before


class FakeCuda(Accelerated):
    """A GPU, with graphs that can be replayed."""

    def __init__(self, index: int, kind: DeviceKind = CUDA) -> None:
        super().__init__(kind, index)

    @cached_property
    def capture(self) -> Capture | None:
        captured = super().capture
        if captured is None:
            return None

        def capture(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
            results: list[Tensor] = []

            def noted() -> Tensor:
                results.append(work())
                return results[-1]

            replay = captured(noted)
            graph = GRAPHS[-1]()
            assert graph is not None
            graph.again = lambda: results[-1].copy_(work())
            return replay

        return capture


class Runtime:
    """The functions of `torch.cuda.cudart` that are used."""

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802
        WATCH[-1].registered.append(range(address, address + size))
        return 0

    def cudaHostUnregister(self, address: int) -> None:  # noqa: N802
        own = WATCH[-1].registered
        own.remove(next(each for each in own if each.start == address))


PROPERTIES = SimpleNamespace(
    name="a GPU",
    multi_processor_count=132,
    shared_memory_per_block_optin=227 << 10,
    pci_domain_id=0,
    pci_bus_id=1,
    pci_device_id=0,
)


@contextmanager
def fake_cuda(
    capability: tuple[int, int] = (9, 0), module: Any = torch.cuda, device: torch.device = GPU
) -> Iterator[Watch]:
    """A GPU of this compute capability, on this thread. Others may compute with its tensors, and
    make none. `module` is torch's for the device.
    """
    watch, stream = Watch(device), Stream(device)
    own = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_name": lambda *_: PROPERTIES.name,
        "set_device": lambda *_: None,
        "mem_get_info": lambda *_: (watch.memory.left, watch.memory.total),
        "memory_reserved": lambda *_: watch.memory.reserved,
        "empty_cache": watch.memory.release,
        "synchronize": lambda *_: watch.wait("the device"),
        "current_stream": lambda *_: stream,
        "stream": lambda own: nullcontext() if own is None else owning(id(own)),
        "device": nullcontext,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph_pool_handle": lambda: POOL,
        "cudart": Runtime,
    }
    torch._C._ensureCUDADeviceGuardSet()
    lifts, threads = torch._C._only_lift_cpu_tensors(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setattr(module, name, value, raising=False)
        WATCH.append(watch)
        torch.set_num_threads(1)
        # So that `torch.tensor` shows its copy to the device.
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with watch:
                yield watch
        finally:
            torch._C._set_only_lift_cpu_tensors(lifts)
            torch.set_num_threads(threads)
            WATCH.pop()
            GRAPHS.clear()
            language.multiprocessors.cache_clear()
            language.shared_memory.cache_clear()
            language.takes_kernels.cache_clear()
            skinny.counters.cache_clear()
