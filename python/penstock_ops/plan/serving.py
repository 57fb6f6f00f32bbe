"""Measures the time that a server adds to its replica's steps: engine loop, API server and HTTP run
on the same CPUs. It starts a `penstock serve` and times concurrent streams.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from penstock.config import FLAGS
from penstock.config.machine import free_port
from penstock.core import PenstockError
from penstock_lab.bench.body import ENDPOINTS, Body
from penstock_lab.bench.client import run_load
from penstock_lab.bench.compare.recipe import Recipe, Values
from penstock_lab.bench.compare.server_under_test import ServerUnderTest
from penstock_lab.bench.compare.servers import Entry
from penstock_lab.bench.progress import Silent
from penstock_lab.bench.request import Outcome, Request
from penstock_lab.bench.target import Address, Target, Wanted, discover
from penstock_ops.plan.subject import Subject
from penstock_ops.plan.time_limit import TimeLimit

STREAMS = (1, 8)
"""Numbers of concurrent streams to measure with: few and many."""
PROMPT = 16
"""Tokens in the prompt of each stream."""
SKIPPED = 24
"""Number of tokens at the start of a stream that are ignored: other prompts are still being
computed, and the steps after them are slower.
"""
SPAN = 1.0
"""Planned duration of a measurement in seconds. It is longer if the model is too slow for FEWEST
steps in this time.
"""
FEWEST, MOST = 8, 400
"""Minimum and maximum number of steps in a measurement."""
REPEATS = 3
"""Number of measurements for each number of streams, if there is time. Few and many streams
alternate, and the median is used.
"""
BACKEND = "openai"
PATIENCE = 1800.0
"""Timeout in seconds for the server's start, and for the next byte of an answer."""

Expected = Callable[[float, float], float]
"""Function (number of decodes, tokens of context of each) -> seconds of the replica's step."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Seconds that a server adds to a step with decodes: `step`, and `row` for each decode."""

    step: float
    row: float
    """Seconds for each decode in the step."""
    repeats: int = field(default=0, compare=False)
    """Number of measurements for each number of streams."""

    def seconds(self, decodes: float) -> float:
        return self.step + decodes * self.row if decodes else 0.0


NOTHING = Extra(0.0, 0.0)


def measure_extra(
    subject: Subject, expected: Expected, said: Callable[[str], None], seconds: float
) -> Extra:
    """Serve the model and time concurrent streams; with few repeats if all take more than `seconds`
    after the server's start. Raises PenstockError if the server does not start, or if a request
    fails.
    """
    said("starting a server")
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as logs:
        server = _server(subject, Path(logs))
        try:
            server.start(PATIENCE)
            wanted = Wanted(BACKEND, ENDPOINTS[BACKEND], None, None, PATIENCE)
            target = discover(Address(server.url), wanted)
            longest = subject.spec.max_position - PROMPT
            return extra(expected, partial(_streams, target), longest, TimeLimit(seconds, said))
        finally:
            server.end()


def extra(
    expected: Expected,
    load: Callable[[int, int], Sequence[Outcome]],
    longest: int,
    limit: TimeLimit,
) -> Extra:
    """Compute the overhead from measurements. `load` sends (streams, output tokens of each), at
    most `longest` tokens. The overhead is the time of a step beyond `expected`, divided into a part
    for each step and a part for each decode. Measurements in which the streams never all decode at
    once are ignored.
    """
    found: list[list[float]] = [[] for _ in STREAMS]
    repeats = 0
    while repeats < REPEATS and limit.has_time_after(repeats):
        repeats += 1
        for streams, times in zip(STREAMS, found, strict=True):
            each = expected(streams, PROMPT + SKIPPED)
            counted = int(min(max(SPAN / max(each, 1e-9), FEWEST), MOST, longest - SKIPPED))
            context = PROMPT + SKIPPED + counted / 2
            limit.report(f"timing streams of the server ({streams})")
            seconds = step_seconds(load(streams, SKIPPED + counted))
            if seconds is not None:
                times.append(seconds - expected(streams, context))
    few, many = (max(median(times or [0.0]), 0.0) for times in found)
    row = max(many - few, 0.0) / (STREAMS[1] - STREAMS[0])
    return Extra(max(few - STREAMS[0] * row, 0.0), row, repeats)


def step_seconds(outcomes: Sequence[Outcome]) -> float | None:
    """Seconds of a step while all streams decode, after their first SKIPPED tokens. None if a
    stream ended before the others had begun, as may happen with a tiny model on a busy machine.
    """
    settled = max(outcome.events[SKIPPED] for outcome in outcomes)
    first = min(outcomes, key=lambda outcome: outcome.events[-1])
    events = [at for at in first.events if at >= settled]
    if len(events) < 2:
        return None
    return (events[-1] - events[0]) / (len(events) - 1)


def _streams(target: Target, streams: int, tokens: int) -> Sequence[Outcome]:
    prompt = [1 + at for at in range(PROMPT)]
    body = Body(chat=False, model=target.model, ignore_eos=True)
    requests = [Request(prompt, PROMPT, tokens)] * streams
    load = run_load(
        target, requests, body=body, max_concurrency=None, keep_text=False, progress=Silent()
    )
    if load.partial:
        raise KeyboardInterrupt
    failed = [outcome for outcome in load.outcomes if not outcome.success]
    if failed:
        raise PenstockError(f"the server failed a request: {failed[0].failure} {failed[0].detail}")
    return load.outcomes


def _server(subject: Subject, logs: Path) -> ServerUnderTest:
    command = [*without_settings(), "{penstock}", "serve", "{model}"]
    command += ["--host", "127.0.0.1", "--port", "{port}"]
    command += ["--no-enable-prefix-caching", "--device", "cpu"]
    recipe = Recipe("penstock", command, ready_path="/health")
    values = Values(
        port=free_port(),
        cpus=sorted(os.sched_getaffinity(0)),
        model=str(subject.path),
        peers=Path(),
        penstock=[sys.executable, "-P", "-m", "penstock"],
        here=Path(),
    )
    return ServerUnderTest(Entry("penstock", recipe), values, logs)


def without_settings() -> list[str]:
    """First words of a command without Penstock's settings, such as API keys, in its environment:
    they are not part of a plan.
    """
    settings = (*(flag.env for flag in FLAGS), "PENSTOCK_CONFIG")
    return ["env", *(f"--unset={name}" for name in settings)]
