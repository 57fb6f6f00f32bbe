"""Python replacements for the compiled extension, which may not be built on a machine with
a GPU.
"""

from __future__ import annotations

import json
import sys
import time
import types
from multiprocessing.connection import Client, Connection, Listener


def stand_in() -> None:
    """Replace the extension `penstock._native`. Sampling parameters are JSON then."""
    module = types.ModuleType("penstock._native")
    module.decode_sampling = json.loads  # type: ignore[attr-defined]
    module.Star = Star  # type: ignore[attr-defined]
    module.PromptBudget = PromptBudget  # type: ignore[attr-defined]
    sys.modules["penstock._native"] = module


class PromptBudget:
    """Replaces the limit on prompt tokens in steps that also decode. It does nothing, because an
    offline batch has no such limit.
    """

    def observe(self, _decodes: int, _prompts: int, _seconds: float) -> None: ...


class Star:
    """Streams between the ranks of one host, with the same interface as `penstock._native.Star`."""

    def __init__(
        self, address: str, key: bytes, rank: int, ranks: int, _capacity: int, patience: float
    ) -> None:
        host, _, port = address.rpartition(":")
        at = (host, int(port))
        self._rank = rank
        if rank:
            self._ends = [_connected(at, key, patience)]
            self._ends[0].send_bytes(bytes([rank]))
            return
        with Listener(at, authkey=key) as listener:
            found = [listener.accept() for _ in range(ranks - 1)]
        self._ends = sorted(found, key=lambda end: end.recv_bytes())

    def gather(self, part: bytes) -> list[bytes] | None:
        if self._rank == 0:
            return [end.recv_bytes() for end in self._ends]
        self._ends[0].send_bytes(part)
        return None

    def share(self, message: bytes) -> bytes | None:
        if self._rank:
            return self._ends[0].recv_bytes()
        for end in self._ends:
            end.send_bytes(message)
        return None


def _connected(at: tuple[str, int], key: bytes, patience: float) -> Connection:
    """A connection to the first rank. Retries for `patience` seconds, because this rank may not
    listen yet.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return Client(at, authkey=key)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
