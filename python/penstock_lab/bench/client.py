"""Sends requests through the native load generator. Ctrl-C ends the load, but not the command."""

from __future__ import annotations

import signal
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import FrameType, TracebackType
from typing import Any, Protocol

from penstock_lab.bench.body import Body
from penstock_lab.bench.progress import Progress
from penstock_lab.bench.request import Load, Outcome, Request
from penstock_lab.bench.target import Target

BYTES_AHEAD = 64 * 2**20
"""No more requests are added while the load generator has this number of bytes of request bodies
queued.
"""
BATCH = 64
"""Maximum number of requests added in one call of `Run.add`."""
GLANCE = 0.2
"""Seconds between progress updates."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Run(Protocol):
    """Interface of `penstock._native.LoadRun`."""

    def add(self, requests: list[tuple[float, int, bytes]]) -> None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def stop(self) -> None: ...
    def wait(self, seconds: float) -> bool: ...
    def progress(self) -> dict[str, int]: ...
    def take(self) -> dict[str, Any]: ...


def native_run(description: str) -> Run:
    from penstock._native import LoadRun

    return LoadRun(description)


def run_load(
    target: Target,
    requests: Sequence[Request],
    *,
    body: Body,
    max_concurrency: int | None,
    keep_text: bool,
    progress: Progress,
    what: str = "requests",
    open_run: Callable[[str], Run] | None = None,
) -> Load:
    """Send each request when it is due; returns when all have ended.

    `open_run` creates the load generator, by default the native one. SIGINT and SIGTERM end the
    load early: open requests are cut off, and the load is marked as partial. A second signal raises
    KeyboardInterrupt.
    """
    run = (open_run or native_run)(target.load_run(max_concurrency, keep_text))
    feed = _Feed(run, requests, body)
    feed.fill(0, lambda: False)
    progress.begin(what, len(requests))
    with _Signals() as signals:
        run.start()
        try:
            _attend(run, feed, signals, progress)
        except BaseException:
            run.stop()
            raise
    progress.end(run.progress())
    columns = _Columns(run.take())
    outcomes = [columns.outcome(index, asked) for index, asked in enumerate(feed.asked())]
    return Load(outcomes, columns.duration, columns.cpu, partial=signals.caught)


def _attend(run: Run, feed: _Feed, signals: _Signals, progress: Progress) -> None:
    stopped = False
    while not run.wait(GLANCE):
        counts = run.progress()
        progress.show(counts)
        if not signals.caught:
            # A request that fails before it is sent also leaves the load generator's queue.
            feed.fill(
                max(counts["sent"], counts["completed"] + counts["failed"]), lambda: signals.caught
            )
        if signals.caught and not stopped:
            stopped = True
            run.stop()
            run.close()


class _Feed:
    """Passes requests to the load generator in order, while less than `BYTES_AHEAD` are queued."""

    def __init__(self, run: Run, requests: Sequence[Request], body: Body) -> None:
        self._run = run
        self._requests = requests
        self._body = body
        self._ends = array("q", [0])
        """Item n is the total size of the first n request bodies in bytes."""
        self._inputs = array("q")
        self._outputs = array("q")
        self._closed = False

    def fill(self, gone: int, enough: Callable[[], bool]) -> None:
        """Add requests while the queue has room, until `enough()`. `gone` is the number of requests
        that have left the queue. Closes the run after the last request.
        """
        while not self._closed and self._ends[-1] - self._ends[gone] < BYTES_AHEAD and not enough():
            start = len(self._inputs)
            batch = [
                self._encode(index)
                for index in range(start, min(start + BATCH, len(self._requests)))
            ]
            if batch:
                self._run.add(batch)
            if len(self._inputs) == len(self._requests):
                self._run.close()
                self._closed = True

    def asked(self) -> Iterator[tuple[int, int]]:
        """Requested (input tokens, output tokens) of each request added to the load generator."""
        return zip(self._inputs, self._outputs, strict=True)

    def _encode(self, index: int) -> tuple[float, int, bytes]:
        request = self._requests[index]
        must, body = self._body.encode(request, index)
        self._ends.append(self._ends[-1] + len(body))
        self._inputs.append(request.input_tokens)
        self._outputs.append(request.output_tokens)
        return request.due, must, body


class _Signals:
    """Context in which the first SIGINT or SIGTERM is only recorded."""

    def __init__(self) -> None:
        self.caught = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        # Only the main thread may set handlers, and only it receives signals.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught = True


class _Columns:
    """The result of `LoadRun.take`: one array for each property, with an item for each request."""

    def __init__(self, taken: Mapping[str, Any]) -> None:
        self.duration: float = taken["duration"]
        self.cpu: float = taken["cpu_s"]
        self._times = {
            name: _array("d", taken[name]) for name in ("due", "sent", "connected", "ended")
        }
        self._usage = {
            name: _array("q", taken[name])
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
        }
        self._resent = _array("B", taken["resent"])
        self._text_events = _array("I", taken["text_events"])
        self._event_ends = list(accumulate(_array("I", taken["event_counts"]), initial=0))
        self._event_times = _array("d", taken["event_times"])
        self._words = {name: taken[name] for name in ("failure", "detail", "finish", "text")}

    def outcome(self, index: int, asked: tuple[int, int]) -> Outcome:
        usage = {name: column[index] for name, column in self._usage.items()}
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
        words = {name: column[index] for name, column in self._words.items()}
        times = {name: column[index] for name, column in self._times.items()}
        return Outcome(
            input_tokens=prompt if prompt >= 0 else asked[0],
            output_tokens=completion if completion >= 0 else self._text_events[index],
            asked=asked,
            events=self._event_times[self._event_ends[index] : self._event_ends[index + 1]],
            reported=prompt >= 0 or completion >= 0,
            cached_tokens=max(usage["cached_tokens"], 0),
            resent=bool(self._resent[index]),
            **times,
            **words,
        )


def _array(code: str, column: bytes) -> array[Any]:
    made: array[Any] = array(code)
    made.frombytes(column)
    return made
