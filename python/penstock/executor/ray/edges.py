"""Edges of a compiled graph that carry tensors: the rows between two stages, without the host.

Ray sends a tensor's shape and type through shared memory, and asks a communicator for what is in
it. On GPUs that is `Edge`, an NCCL connection of two ranks. On torch's CPU device it is Ray's
`CPUCommunicator`, whose tensors go through shared memory, too.

Shapes are not static: a step has as many rows as its plan, or failed and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from penstock.backends import GPU_BACKENDS
from penstock.executor.ranks.topology import LOOPBACK, PATIENCE
from penstock.executor.ray.actors import Actors


class Edge:
    """Ray's communicator of a rank and the one that gets its rows. Ray calls it on the actors."""

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
        """Called for each end of each channel."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()

    def _move(self, move: Callable[[], Any]) -> Any:
        """An error in here ends Ray's loop on the actor, and the driver is not told which."""
        try:
            return move()
        except Exception as error:
            if self._pair is None:
                from ray.exceptions import RayChannelError

                raise RayChannelError("the graph has ended") from error
            _accelerator().lose(error)
            raise


def open_edges(
    actors: Actors, tp: int, backend: str, *, overlap: bool, buffer_bytes: int, key: bytes
) -> list[Any]:
    """Communicators of all ranks but those of the last stage. `close_files` of the actors follows
    when the graph is compiled.
    """
    gpus = backend in GPU_BACKENDS
    # A rank on Ray sees its own GPU alone.
    device = "cuda:0" if gpus else "cpu"
    prepared = [
        handle.__ray_call__.remote(prepare, device, overlap, buffer_bytes)
        for handle in actors.handles
    ]
    actors.get(dict(enumerate(prepared)))
    return connect_gpus(actors, tp, key) if gpus else connect_cpus(actors, tp)


def prepare(actor: Any, device: str, overlap: bool, buffer_bytes: int) -> None:
    """Make the device of an actor's tensors known to Ray, in the actor."""
    backend = import_module("penstock.backends.torch.ray_communicator")
    announce(backend.Accelerator(device, overlap, actor.lose), buffer_bytes)


def announce(accelerator: Any, buffer_bytes: int) -> None:
    """Make Ray use the accelerator in this process."""
    from ray.dag import DAGContext
    from ray.experimental.channel import ChannelContext
    from ray.experimental.channel.accelerator_context import AcceleratorContext

    AcceleratorContext.set(accelerator)
    ChannelContext.get_current().set_torch_device(accelerator.get_accelerator_devices()[0])
    context = DAGContext.get_current()
    context.buffer_size_bytes = buffer_bytes
    # After that time, by default 0.1 s, Ray reads an edge from its beginning again. Where it had a
    # tensor and waited for the rest of the message, the tensor is lost, and the step after it.
    context.read_iteration_timeout = PATIENCE


def connect_gpus(actors: Actors, tp: int, key: bytes) -> list[Any]:
    from ray.experimental.channel.communicator import Communicator

    # Not a base class: Ray is imported in functions alone.
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


def connect_cpus(actors: Actors, tp: int) -> list[Any]:
    from ray.experimental.channel.cpu_communicator import CPUCommunicator

    pairs = zip(actors.handles, actors.handles[tp:], strict=False)
    return [CPUCommunicator(2, list(pair)) for pair in pairs]


def _accelerator() -> Any:
    """What was announced in this process."""
    from ray.experimental.channel.accelerator_context import AcceleratorContext

    return AcceleratorContext.get()
