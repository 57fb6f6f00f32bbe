"""Collectives of a tensor-parallel group, over authenticated streams or a library such as NCCL."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from penstock.backends.torch.device_lost import is_loss, is_of_library

if TYPE_CHECKING:
    from penstock._native import Star

LEAST_MESSAGE = 1 << 16
"""Minimum message capacity in bytes: NCCL's connection set-up needs it."""
CLOSE_S = 10.0
"""Seconds that `close` waits for NCCL's shutdown."""

log = logging.getLogger(__name__)


class Group(Protocol):
    """Collectives among the ranks of a stage. All ranks must make the same calls. Raises
    ConnectionError if a rank is lost.
    """

    def sum(self, x: Tensor) -> Tensor:
        """All-reduce: the sum of `x` over the ranks, possibly in place."""

    def gather(self, columns: Tensor, widths: list[int]) -> Tensor | None:
        """Gather: on the first rank, all ranks' columns side by side, of `widths[rank]` columns
        each; None on the others.
        """

    def share(self, x: Tensor) -> Tensor:
        """Broadcast: the first rank's `x`, written in place."""

    def close(self) -> None:
        """Close the connections, without waiting for the other ranks, which may be lost."""


class StreamGroup:
    """The ranks of a stage on CPUs, of one or several hosts, connected by streams. The first rank
    adds all ranks' tensors in rank order and broadcasts the sum, so all ranks get bitwise the same
    result.
    """

    def __init__(self, star: Star) -> None:
        self._star = star

    def sum(self, x: Tensor) -> Tensor:
        others = self._star.gather(to_bytes(x))
        if others is None:
            return self._received(self._star.share(b""), x)
        # Add in f32, so that a bfloat16 sum is rounded only once.
        total = x.float()
        for part in others:
            total = total + from_bytes(part, x.dtype, x.shape).float()
        return self.share(total.to(x.dtype))

    def gather(self, columns: Tensor, widths: list[int]) -> Tensor | None:
        others = self._star.gather(to_bytes(columns))
        if others is None:
            return None
        parts = [columns]
        for part, width in zip(others, widths[1:], strict=True):
            parts.append(from_bytes(part, columns.dtype, torch.Size((len(columns), width))))
        return torch.cat(parts, 1)

    def share(self, x: Tensor) -> Tensor:
        return self._received(self._star.share(to_bytes(x)), x)

    def close(self) -> None:
        """No-op: the streams close with the object that owns them."""

    def _received(self, shared: bytes | None, x: Tensor) -> Tensor:
        if shared is not None:
            x.copy_(from_bytes(shared, x.dtype, x.shape))
        return x


def to_bytes(x: Tensor) -> bytes:
    return bytes(x.detach().contiguous().view(-1).view(torch.uint8).numpy())


def from_bytes(data: bytes, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """A tensor of `shape` from the bytes of another rank. Raises ConnectionError if the number of
    bytes differs, which means that the other rank computes another step.
    """
    if len(data) != shape.numel() * dtype.itemsize:
        raise ConnectionError("a rank of the group computed another step")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


class LibraryGroup:
    """The ranks of a stage on devices, connected by their library (NCCL): a process group of
    torch.
    """

    def __init__(self, group: Any, rank: int, ranks: int) -> None:
        self._group = group
        self._rank = rank
        self._ranks = ranks

    def sum(self, x: Tensor) -> Tensor:
        _wait(lambda: self._group.allreduce([x]))
        return x

    def gather(self, columns: Tensor, widths: list[int]) -> Tensor | None:
        if self._rank:
            _wait(lambda: self._group.send([columns.contiguous()], 0, 0))
            return None
        parts = [columns]
        for rank in range(1, self._ranks):
            parts.append(columns.new_empty(len(columns), widths[rank]))
            _wait(partial(self._group.recv, parts[rank:], rank, 0))
        return torch.cat(parts, 1)

    def share(self, x: Tensor) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        _wait(lambda: self._group.broadcast([x], options))
        return x

    def close(self) -> None:
        """Shut NCCL down with a timeout, because the shutdown waits for the other ranks, which may
        hang.
        """
        ending = threading.Thread(target=self._shut_down, name="nccl-shutdown", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            log.error("NCCL has not ended after %.0f s; its threads are left behind", CLOSE_S)

    def _shut_down(self) -> None:
        try:
            self._group.shutdown()
        except RuntimeError as error:
            log.warning("NCCL: %s", error)


def _wait(begin: Callable[[], Any]) -> None:
    try:
        begin().wait()
    except RuntimeError as error:
        if is_loss(error) and not is_of_library(error):
            raise
        raise ConnectionError(f"another rank was lost: {error}") from error


class StarStore(dist.Store):  # type: ignore[misc]
    """Key-value store for NCCL's connection set-up. Values set by rank 0 are broadcast over the
    group's streams; values of other ranks stay local. This suffices: a communicator's first rank
    creates NCCL's unique id, and here that is always rank 0.
    """

    def __init__(self, star: Star, rank: int) -> None:
        super().__init__()
        self._star = star
        self._rank = rank
        self._values: dict[str, bytes] = {}
        self._receiving = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = bytes(value)
        if self._rank == 0:
            self._star.share(json.dumps([key, bytes(value).hex()]).encode())

    def get(self, key: str) -> bytes:
        """The value of a key. Ranks other than 0 wait until rank 0 has broadcast it; rank 0 raises
        KeyError if the key is not set.
        """
        with self._receiving:
            while key not in self._values:
                if self._rank == 0:
                    raise KeyError(key)
                name, value = json.loads(self._star.share(b"") or b"")
                self._values[name] = bytes.fromhex(value)
        return self._values[key]

    def wait(self, keys: list[str], _timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def add(self, key: str, value: int) -> int:
        total = int(self._values.get(key, b"0")) + value
        self._values[key] = str(total).encode()
        return total

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None
