"""Communication with other ranks: tensor-parallel collectives, and activations between stages."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.backends.torch.inputs import upload
from penstock.backends.torch.ranks.group import (
    LEAST_MESSAGE,
    Group,
    LibraryGroup,
    StarStore,
    StreamGroup,
)
from penstock.backends.torch.ranks.symmetric import with_symmetric
from penstock.backends.torch.runtime import accelerated, kind_of, process_group, runtime
from penstock.backends.torch.sampling.sampling import HEAD_ROWS
from penstock.backends.torch.shard import Shard

Wiring = dict[str, Any]
"""Addresses and keys by which a rank reaches its peers, as JSON. Built by
`penstock.executor.ranks.topology`.
"""


class PrevStage(Protocol):
    def receive(self, like: Tensor) -> Tensor:
        """The next step's residual stream [rows, hidden], on the device of `like`, the weight
        [hidden] of a norm.
        """


class NextStage(Protocol):
    def send(self, x: Tensor) -> None: ...


class Pipe(Protocol):
    """One end of a byte pipe."""

    def receive(self) -> bytes: ...

    def send(self, rows: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Ranks:
    """Connections of a rank: to the ranks of its stage (`group`), the previous and the next stage.
    A field is None if the rank has no such peer.
    """

    group: Group | None = None
    before: PrevStage | None = None
    after: NextStage | None = None

    def sum(self, x: Tensor) -> Tensor:
        return x if self.group is None else self.group.sum(x)

    def gather(self, logits: Tensor, shard: Shard) -> Tensor | None:
        """Logits [rows, vocabulary], gathered from the columns of all ranks of the stage; None on
        ranks that do not sample.
        """
        return logits if self.group is None else self.group.gather(logits, shard.vocab_widths)

    def share(self, tokens: Tensor) -> Tensor:
        """Broadcast the tokens that the stage's first rank has sampled."""
        return tokens if self.group is None else self.group.share(tokens)

    def close(self) -> None:
        if self.group is not None:
            self.group.close()

    def receive(self, rows: int, like: Tensor) -> Tensor:
        """The residual stream [rows, hidden] from the previous stage. Raises ConnectionError if it
        has another number of rows.
        """
        assert self.before is not None
        found = self.before.receive(like)
        if len(found) != rows:
            raise ConnectionError(
                f"the stage before computed another step: of {len(found)} rows, not of {rows}"
            )
        return found

    def send(self, x: Tensor) -> None:
        if self.after is not None:
            self.after.send(x)


@dataclass(frozen=True, slots=True)
class CarriedRows:
    """Rows of the residual stream (hidden states) that the caller (Ray) transports between stages,
    as bytes or tensors.
    """

    inward: queue.Queue[Any] = field(default_factory=queue.Queue)
    """Rows from the previous stage, one entry per step: bytes, or for tensors the function that
    `Device.handed` returned.
    """
    outward: queue.Queue[Any] = field(default_factory=queue.Queue)

    def fetch(self, timeout: float) -> bytes | Tensor:
        """The rows of the oldest step for the next stage. Raises TimeoutError if none are there
        within `timeout` seconds.
        """
        try:
            found: bytes | Tensor = self.outward.get(timeout=timeout)
            return found
        except queue.Empty:
            raise TimeoutError from None


def open_ranks(
    wiring: Wiring, shard: Shard, device: torch.device, *, symmetric: bool
) -> tuple[Ranks, CarriedRows]:
    """Open the connections of a rank. Between GPUs, waits for the other ranks of the stage
    (`open_group`).
    """
    carried = CarriedRows()
    patience = float(wiring["patience_s"])
    # Open the listening end first, because the connecting end waits for it.
    after = _after(wiring["after"], carried.outward, patience)
    before = _before(wiring["before"], carried.inward, patience)
    group = None
    if wiring["group"] is not None:
        widths = shard.vocab_widths
        group = open_group(wiring["group"], widths, device, patience, symmetric=symmetric)
    return Ranks(group, before, after), carried


def open_group(
    wiring: dict[str, Any],
    widths: list[int],
    device: torch.device,
    patience: float,
    *,
    symmetric: bool,
) -> Group:
    """Open the connection to the other ranks of the stage. `widths`: number of logit columns per
    rank; `patience`: seconds to wait for a rank. Between GPUs, this waits for the other ranks. With
    `symmetric`, small sums use symmetric memory if all ranks support it.
    """
    from penstock._native import Star

    rank, ranks = int(wiring["rank"]), int(wiring["ranks"])
    capacity = 4 * max(int(wiring["capacity"]), HEAD_ROWS * max(widths), LEAST_MESSAGE // 4)
    key = bytes.fromhex(wiring["key"])
    star = Star(wiring["address"], key, rank, ranks, capacity, patience)
    if not accelerated(device):
        return StreamGroup(star)
    wait, kind = timedelta(seconds=patience), kind_of(device)
    store = StarStore(star, rank)
    group = LibraryGroup(process_group(kind)(store, rank, ranks, wait), rank, ranks)
    if not (symmetric and kind.symmetric):
        return group
    with runtime(device).device(device):
        return with_symmetric(group, star, wiring["address"], rank, ranks, device)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Rows as float32 bytes, through host memory."""

    pipe: Pipe

    def receive(self, like: Tensor) -> Tensor:
        data = torch.frombuffer(bytearray(self.pipe.receive()), dtype=torch.float32)
        return upload(data.view(-1, len(like)), like.device)

    def send(self, x: Tensor) -> None:
        self.pipe.send(x.float().cpu().numpy().tobytes())


class _Ring:
    """The reading or writing end of a shared-memory ring."""

    def __init__(self, pipe: Wiring, patience: float, *, reads: bool) -> None:
        from penstock._native import RingReader, RingWriter

        path, sizes = pipe["path"], (pipe["slots"], pipe["capacity"])
        self._patience = patience
        self._reader = RingReader(path, 0, 1, *sizes) if reads else None
        self._writer = None if reads else RingWriter(path, 1, *sizes, patience)

    def receive(self) -> bytes:
        assert self._reader is not None
        found = self._reader.receive(self._patience)
        if found is None:
            raise ConnectionError(f"the stage before was silent for {self._patience:.0f} s")
        return found

    def send(self, rows: bytes) -> None:
        assert self._writer is not None
        self._writer.send(rows)


class _Stream:
    """An authenticated stream to another host. The later stage connects to the earlier one."""

    def __init__(self, pipe: Wiring, patience: float, *, listens: bool) -> None:
        from penstock._native import Stream, StreamListener

        self._pipe, self._key, self._patience = pipe, bytes.fromhex(pipe["key"]), patience
        self._listener = StreamListener(pipe["address"], self._key) if listens else None
        self._stream: Stream | None = None

    def _opened(self) -> Any:
        from penstock._native import Stream

        if self._stream is None and self._listener is not None:
            self._stream = self._listener.accept(self._patience)
        elif self._stream is None:
            self._stream = Stream.connect(self._pipe["address"], self._key, self._patience)
        return self._stream

    def receive(self) -> bytes:
        found: bytes | None = self._opened().receive(self._patience, self._pipe["capacity"])
        if found is None:
            raise ConnectionError(f"the stage before was silent for {self._patience:.0f} s")
        return found

    def send(self, rows: bytes) -> None:
        self._opened().send(rows)


@dataclass(frozen=True, slots=True)
class _Carried:
    """Rows that the caller transports as bytes."""

    rows: queue.Queue[Any]
    patience: float

    def receive(self) -> bytes:
        found: bytes = _next(self.rows, self.patience)
        return found

    def send(self, rows: bytes) -> None:
        self.rows.put(rows)


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Rows that the caller transports as device tensors, in the type of the weights."""

    rows: queue.Queue[Any]
    patience: float

    def receive(self, like: Tensor) -> Tensor:
        take: Callable[[], Tensor] = _next(self.rows, self.patience)
        return take().view(-1, len(like))

    def send(self, x: Tensor) -> None:
        self.rows.put(x)


def _next(rows: queue.Queue[Any], patience: float) -> Any:
    try:
        return rows.get(timeout=patience)
    except queue.Empty:
        raise ConnectionError("the stage before was silent") from None


def _before(pipe: Wiring | None, inward: queue.Queue[Any], patience: float) -> PrevStage | None:
    if pipe is None:
        return None
    if pipe["kind"] == "tensors":
        return _Tensors(inward, patience)
    if pipe["kind"] == "carried":
        return _Bytes(_Carried(inward, patience))
    if pipe["kind"] == "ring":
        return _Bytes(_Ring(pipe, patience, reads=True))
    return _Bytes(_Stream(pipe, patience, listens=False))


def _after(pipe: Wiring | None, outward: queue.Queue[Any], patience: float) -> NextStage | None:
    if pipe is None:
        return None
    if pipe["kind"] == "tensors":
        return _Tensors(outward, patience)
    if pipe["kind"] == "carried":
        return _Bytes(_Carried(outward, patience))
    if pipe["kind"] == "ring":
        return _Bytes(_Ring(pipe, patience, reads=False))
    return _Bytes(_Stream(pipe, patience, listens=True))


def parsed(text: str) -> Wiring:
    wiring: Wiring = json.loads(text)
    return wiring
