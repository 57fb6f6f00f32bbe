"""Requests built on access, because the prompts of a long trace do not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from penstock_lab.bench.request import Request


class LazyRequests(Sequence[Request]):
    """The requests `build(index)` for each of `indices`. Each access builds the request again, so
    `build` must be deterministic.
    """

    def __init__(self, indices: Sequence[int], build: Callable[[int], Request]) -> None:
        self._indices = indices
        self._build = build

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> LazyRequests: ...
    def __getitem__(self, index: int | slice) -> Request | LazyRequests:
        if isinstance(index, slice):
            return LazyRequests(self._indices[index], self._build)
        return self._build(self._indices[index])
