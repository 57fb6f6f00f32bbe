"""Edges of a compiled graph that send tensors: rows (hidden states) between two pipeline stages,
without a copy through host memory.

Ray sends a tensor's shape and type through shared memory, and leaves the data to a communicator. On
GPUs the communicator is `Edge`, which connects two ranks by the device's library (NCCL). On torch's
CPU device it is Ray's `CPUCommunicator`, which also uses shared memory. --ray-communicator replaces
both by a class of another package.

Shapes vary: a step has as many rows as its plan, and a failed step has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from penstock.backends import GPU_BACKENDS
from penstock.core import InvalidValueError
from penstock.executor.ranks.topology import LOOPBACK, PATIENCE
from penstock.executor.ray.actors import Actors


class Edge:
    """A communicator, in Ray's sense, between a rank and the rank that receives its rows. Ray calls
    it in the two actors.
    """

    def __init__(self, actors: Sequence[Any], wiring: dict[str, Any]) -> None:
        self._actors = list(actors)
        self._wiring = wiring
        self._rank: int | None = None
        self._pair: Any = None

    def initialize(self, rank: int) -> None:
        self._rank = rank
        self._pair = _accelerator().open_pair(self._wiring, rank)

    def get_actor_handles(self) -> list[Any]:
        return self._actors

    def get_rank(self, actor: Any) -> int:
        return self._actors.index(actor)

    def get_self_rank(self) -> int | None:
        return self._rank

    def get_world_size(self) -> int:
        return len(self._actors)

    def get_transport_name(self) -> str:
        return "accelerator"

    def send(self, value: Any, _peer: int) -> None:
        self._move(lambda: self._pair.send(value))

    def recv(self, shape: Any, dtype: Any, _peer: int, _allocator: Any = None) -> Any:
        return self._move(lambda: self._pair.receive(shape, dtype))

    @property
    def send_stream(self) -> Any:
        return self._pair.send_stream

    @property
    def recv_stream(self) -> Any:
        return self._pair.receive_stream

    def destroy(self) -> None:
        """Close the connection. Ray calls this once for each end of each channel."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()

    def _move(self, move: Callable[[], Any]) -> Any:
        """Send or receive. An error ends this rank, because Ray does not report it to the
        executor.
        """
        try:
            return move()
        except Exception as error:
            if self._pair is None:
                from ray.exceptions import RayChannelError

                raise RayChannelError("the graph has ended") from error
            _accelerator().lose(error)
            raise


def open_edges(
    actors: Actors,
    tp: int,
    backend: str,
    *,
    overlap: bool,
    communicator: type | None,
    buffer_bytes: int,
    key: bytes,
) -> list[Any]:
    """The communicators for compiled graphs, one for each rank outside the last stage: objects of
    the class `communicator` if given, else of the built-in class. The caller calls the actors'
    `close_files` once the graph is compiled.
    """
    gpus = backend in GPU_BACKENDS
    # Each Ray actor can use only its own device, whose index is therefore 0.
    device = f"{backend}:0" if gpus else "cpu"
    prepared = [
        handle.__ray_call__.remote(prepare, device, overlap, buffer_bytes)
        for handle in actors.handles
    ]
    actors.get(dict(enumerate(prepared)))
    if communicator is None and gpus:
        return connect_gpus(actors, tp, key)
    return connect_by(communicator or _of_cpus(), actors, tp)


def prepare(actor: Any, device: str, overlap: bool, buffer_bytes: int) -> None:
    """Register the device of an actor's tensors with Ray, inside the actor."""
    backend = import_module("penstock.backends.torch.ranks.ray_communicator")
    announce(backend.Accelerator(device, overlap, actor.lose), buffer_bytes)


def announce(accelerator: Any, buffer_bytes: int) -> None:
    """Make Ray in this process use `accelerator` for tensors, and `buffer_bytes` as the buffer size
    of each channel.
    """
    from ray.dag import DAGContext
    from ray.experimental.channel import ChannelContext
    from ray.experimental.channel.accelerator_context import AcceleratorContext

    AcceleratorContext.set(accelerator)
    ChannelContext.get_current().set_torch_device(accelerator.get_accelerator_devices()[0])
    context = DAGContext.get_current()
    context.buffer_size_bytes = buffer_bytes
    # Seconds (by default 0.1) after which Ray starts to read an edge again from the beginning. If
    # Ray had already read a tensor and waited for the rest of the message, that tensor and the next
    # step would be lost.
    context.read_iteration_timeout = PATIENCE


def connect_gpus(actors: Actors, tp: int, key: bytes) -> list[Any]:
    from ray.experimental.channel.communicator import Communicator

    # `Edge` is registered rather than derived from this base class, because Ray is imported only
    # inside functions.
    Communicator.register(Edge)
    nodes = [each.node for each in actors.ranks]
    pairs = list(zip(range(len(nodes)), range(tp, len(nodes)), strict=False))
    hosts = [LOOPBACK if nodes[a].id == nodes[b].id else nodes[a].address for a, b in pairs]
    ports = actors.get(
        {
            a: actors.handles[a].make.remote([("port", host)])
            for (a, _), host in zip(pairs, hosts, strict=True)
        }
    )
    fixed = {"key": key.hex(), "patience_s": PATIENCE}
    return [
        Edge((actors.handles[a], actors.handles[b]), {**made[0], **fixed})
        for (a, b), made in zip(pairs, ports, strict=True)
    ]


def connect_by(kind: Callable[[int, list[Any]], Any], actors: Actors, tp: int) -> list[Any]:
    """A communicator of class `kind` for each pair, made from the number of actors and their
    handles.
    """
    pairs = zip(actors.handles, actors.handles[tp:], strict=False)
    return [kind(2, list(pair)) for pair in pairs]


def load_communicator(name: str) -> type:
    """The class named by --ray-communicator as `module:Class`. Raises InvalidValueError if there is
    no such class, or if it is not a Ray Communicator.
    """
    from ray.experimental.channel.communicator import Communicator

    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidValueError("--ray-communicator", name, f"MODULE:CLASS ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Communicator)):
        base = "ray.experimental.channel.communicator.Communicator"
        raise InvalidValueError("--ray-communicator", name, f"a class derived from {base}")
    return found


def _of_cpus() -> type:
    from ray.experimental.channel.cpu_communicator import CPUCommunicator

    kind: type = CPUCommunicator
    return kind


def _accelerator() -> Any:
    """The accelerator that `announce` has registered with Ray in this process."""
    from ray.experimental.channel.accelerator_context import AcceleratorContext

    return AcceleratorContext.get()
