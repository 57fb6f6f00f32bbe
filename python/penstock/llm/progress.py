"""Progress of a batch on standard error, in tqdm's format: a bar on a terminal; elsewhere one line
at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

GLANCE = 0.1
"""Minimum seconds between two updates of the bar."""
WIDTH = 20
Tqdm = Callable[..., Any]
"""`tqdm.tqdm` or a compatible class."""


class Progress(Protocol):
    def ended(self, inputs: int, outputs: int) -> None:
        """Record that a request has ended, with its numbers of input and output tokens."""

    def close(self) -> None: ...


class Silent:
    def ended(self, inputs: int, outputs: int) -> None:
        pass

    def close(self) -> None:
        pass


class Bar:
    def __init__(
        self,
        total: int,
        what: str,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._what, self._stream, self._clock = total, what, stream, clock
        self._live = stream.isatty()
        self._began = clock()
        self._drawn = 0.0
        self._done = self._inputs = self._outputs = 0
        if self._live:
            self._draw()

    def ended(self, inputs: int, outputs: int) -> None:
        self._done += 1
        self._inputs += inputs
        self._outputs += outputs
        if self._live and self._clock() - self._drawn >= GLANCE:
            self._draw()

    def close(self) -> None:
        if self._live:
            self._draw()
            self._write("\n")
        else:
            self._write(self.text() + "\n")

    def text(self) -> str:
        seconds = max(self._clock() - self._began, 1e-9)
        share = self._done / self._total
        bar = "#" * int(share * WIDTH)
        return (
            f"{self._what}: {share:4.0%}|{bar:<{WIDTH}}| {self._done}/{self._total} "
            f"[{int(seconds) // 60:02d}:{int(seconds) % 60:02d}, {self._done / seconds:.2f} it/s, "
            f"input: {self._inputs / seconds:.2f} toks/s, "
            f"output: {self._outputs / seconds:.2f} toks/s]"
        )

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._write("\r\x1b[K" + self.text())

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Theirs:
    """A progress bar supplied by the caller, such as `tqdm.notebook.tqdm`."""

    def __init__(self, total: int, what: str, make: Tqdm) -> None:
        self._bar = make(total=total, desc=what, dynamic_ncols=True)

    def ended(self, inputs: int, outputs: int) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


def open_progress(wanted: bool | Tqdm, total: int, what: str = "Processed prompts") -> Progress:
    """`wanted` is vLLM's `use_tqdm`: whether to show progress, or a class like tqdm."""
    if not wanted or not total:
        return Silent()
    return Bar(total, what, sys.stderr) if wanted is True else Theirs(total, what, wanted)
