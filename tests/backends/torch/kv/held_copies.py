"""Streams of copies in place of a GPU's."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.backends.torch.async_copy import Pair
from penstock.backends.torch.kernels import crc64
from tests.limits import HANG


class HeldCopies:
    """Copies happen when they are let go, or at once; what comes after them on a stream waits.

    `wrong` lists memory of the host that a copy began to use while another one had it, and memory
    that was unpinned then.
    """

    gds = True

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = {"host": False, "device": False}
        self._begun: list[_Held] = []
        self.wrong: list[str] = []
        self.pinned: list[Tensor] = []
        self.error: Exception | None = None

    def hold(self, *directions: str) -> None:
        with self._changed:
            self._held.update(dict.fromkeys(directions, True))

    def let_go(self, *directions: str) -> None:
        with self._changed:
            self._held.update(dict.fromkeys(directions, False))
            self._changed.notify_all()

    def let_one_go(self, direction: str) -> None:
        """Wait for the oldest copy of a direction, and let it happen."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun(direction), HANG)
            self.begun(direction)[0].free = True
            self._changed.notify_all()

    def begun(self, direction: str) -> list[_Held]:
        return [each for each in self._begun if each.direction == direction]

    def pin(self, size: int) -> Tensor:
        self.pinned.append(torch.full((size,), 255, dtype=torch.uint8))
        return self.pinned[-1]

    def unpin(self, memory: Tensor) -> None:
        with self._changed:
            self.wrong += ["unpinned in use"] * bool(self._begun)
        self.pinned = [each for each in self.pinned if each is not memory]

    def to_host(self, pairs: Sequence[Pair]) -> _Held:
        return self._start("host", pairs)

    def to_device(self, pairs: Sequence[Pair]) -> _Held:
        return self._start("device", pairs)

    def crc64(self, memories: Sequence[Tensor]) -> int:
        return crc64(memories)

    def _start(self, direction: str, pairs: Sequence[Pair]) -> _Held:
        if self.error is not None:
            raise self.error
        with self._changed:
            held = _Held(self, direction, pairs)
            used = held.host_memory()
            for other in self._begun:
                self.wrong += [f"{at:x} twice" for at in used & other.host_memory()]
            self._begun.append(held)
            self._changed.notify_all()
        return held

    def finish(self, held: _Held) -> None:
        with self._changed:
            free = self._changed.wait_for(lambda: held.free or not self._held[held.direction], HANG)
            assert free, "held for too long"
            for target, source in held.pairs:
                target.copy_(source)
            self._begun.remove(held)
            self._changed.notify_all()


class _Held:
    def __init__(self, copies: HeldCopies, direction: str, pairs: Sequence[Pair]) -> None:
        self._copies = copies
        self.direction = direction
        self.pairs = list(pairs)
        self.free = False

    def host_memory(self) -> set[int]:
        """Addresses of the blocks that are pinned."""
        at = 0 if self.direction == "host" else 1
        return {pair[at].data_ptr() for pair in self.pairs}

    def result(self) -> float:
        self._copies.finish(self)
        return 0.001


class LateCopies(HeldCopies):
    """Copies happen some milliseconds late."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._drawn = random.Random(seed)

    def finish(self, held: _Held) -> None:
        time.sleep(self._drawn.choice([0.0, 0.001, 0.005]))
        super().finish(held)
