"""A communicator of another package, for `--ray-communicator`: gloo between two actors, and a list
of what it sends. It is imported when Ray has its settings.
"""

from __future__ import annotations

import socket
from contextlib import nullcontext
from typing import Any

import torch
from ray.experimental.channel.communicator import Communicator

from tests.fakes.ray_gpu import open_gloo

SENT: list[tuple[int, ...]] = []
"""Shapes of the tensors that this process has sent."""


class Listed(Communicator):  # type: ignore[misc]
    def __init__(self, world_size: int, actors: list[Any]) -> None:
        self._size, self._actors = world_size, actors
        self._rank: int | None = None
        self._group: Any = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"

    def initialize(self, rank: int) -> None:
        self._rank, self._group = rank, open_gloo(self._address, rank)

    def get_actor_handles(self) -> list[Any]:
        return self._actors

    def get_rank(self, actor: Any) -> int:
        return self._actors.index(actor)

    def get_self_rank(self) -> int | None:
        return self._rank

    def get_world_size(self) -> int:
        return self._size

    def send(self, value: torch.Tensor, peer_rank: int) -> None:
        SENT.append(tuple(value.shape))
        self._group.send([value], peer_rank, 0).wait()

    def recv(self, shape: Any, dtype: Any, peer_rank: int, _allocator: Any = None) -> torch.Tensor:
        found = torch.empty(shape, dtype=dtype)
        self._group.recv([found], peer_rank, 0).wait()
        return found

    @property
    def send_stream(self) -> Any:
        return nullcontext()

    @property
    def recv_stream(self) -> Any:
        return nullcontext()

    def allreduce(self, *_: Any) -> None:
        raise NotImplementedError

    allgather = reducescatter = allreduce

    def destroy(self) -> None:
        self._group = None

    def get_transport_name(self) -> str:
        return "accelerator"

    @classmethod
    def generate_communicator_id(cls) -> str:
        return ""


def sent(_actor: Any) -> list[tuple[int, ...]]:
    return SENT
