"""Shared memory and ports of one host, made for the ranks that are joined by them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.core import PenstockError
from penstock.ranks.shared import SharedFiles


class LocalParts:
    """`process` as for `SharedFiles`. `close` is due once the ranks have opened what was made."""

    def __init__(self, directory: Path, process: str = "self") -> None:
        self.files = SharedFiles(directory, process)
        """More than parts may be on them, if it is there before `make`."""
        self._ports: list[socket.socket] = []

    def make(self, wanted: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
        """Once: ("group", ranks, capacity), ("ring", slots, capacity) or ("port", host) each.

        Gives what a rank's wiring has for it, but for rank, key and capacity of a stream.
        PenstockError when there is too little memory, or the host has no such address.
        """
        made = [self._make(*each) for each in wanted]
        self.files.seal()
        return made

    def close(self) -> None:
        self.files.close()
        for held in self._ports:
            held.close()
        self._ports.clear()

    def _make(self, kind: str, *sizes: Any) -> dict[str, Any]:
        if kind == "group":
            return self.files.group(*sizes)
        if kind == "ring":
            return {"kind": "ring", **self.files.ring(1, *sizes)}
        return {"kind": "stream", "address": self._reserve(*sizes)}

    def _reserve(self, host: str) -> str:
        """A port that nobody else is given while this socket is bound to it; a listener that asks
        for it by number, and shares addresses, gets it."""
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._ports.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((host, 0))
        except OSError as error:
            raise PenstockError(f"cannot listen at {host}: {error.strerror}") from error
        return join_address(host, held.getsockname()[1])


def join_address(host: str, port: int) -> str:
    """As addresses are written: with brackets around those of version 6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
