"""A communicator of another package, for `--ray-communicator`: Ray's own for CPUs, and a list of
what it sends.
"""

from __future__ import annotations

from typing import Any

from ray.experimental.channel.cpu_communicator import CPUCommunicator

SENT: list[tuple[int, ...]] = []
"""Shapes of the tensors that this process has sent."""


class Listed(CPUCommunicator):  # type: ignore[misc]
    def send(self, value: Any, peer_rank: int) -> None:
        SENT.append(tuple(value.shape))
        super().send(value, peer_rank)


def sent(_actor: Any) -> list[tuple[int, ...]]:
    return SENT
