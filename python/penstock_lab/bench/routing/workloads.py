"""Workloads for a fleet of replicas: windows of recorded traces, and synthetic arrivals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.core import InvalidValueError
from penstock_lab.bench.traces import Arrival, Trace

BLOCK = 64
"""Tokens in a block of synthetic prompts."""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    block_tokens: int
    """Tokens in a block of `Arrival.hash_ids`."""
    arrivals: tuple[Arrival, ...]
    """Ascending in time, starting at 0 or later."""


def from_trace(
    trace: Trace, rate: float = 1.0, start: float = 0.0, duration: float | None = None
) -> Workload:
    """The requests of a trace from second `start` on, for `duration` seconds of the trace's clock,
    played `rate` times as fast.
    """
    end = float("inf") if duration is None else start + duration
    arrivals = tuple(
        Arrival(
            (one.at - start) / rate,
            max(1, one.input_tokens),
            max(1, one.output_tokens),
            one.hash_ids,
            one.block_tokens,
        )
        for one in trace.arrivals
        if start <= one.at < end
    )
    if not arrivals:
        raise InvalidValueError(
            "--start, --duration", f"{start}, {duration}", f"a window within {trace.span:.0f} s"
        )
    block = next((one.block_tokens for one in arrivals if one.block_tokens), BLOCK)
    return Workload(trace.path.stem, block, arrivals)


def made_up(name: str, rate: float = 1.0, duration: float | None = None, seed: int = 1) -> Workload:
    """The synthetic workload `name` of WORKLOADS, with `rate` times as many arrivals per second."""
    rng = random.Random(f"{name} {seed}")
    maker, seconds = WORKLOADS[name]
    arrivals = tuple(maker(rng, rate, duration or seconds))
    return Workload(name, BLOCK, arrivals)


def _times(
    rng: random.Random, seconds: float, rate: Callable[[float], float], most: float
) -> Iterator[float]:
    """Arrival times in seconds of a Poisson process whose rate changes over time, by thinning
    (Lewis and Shedler, 1979). `most` is the maximum of `rate`, in arrivals per second.
    """
    now = rng.expovariate(most)
    while now < seconds:
        if rng.random() * most < rate(now):
            yield now
        now += rng.expovariate(most)


def _tokens(rng: random.Random, mean: float, cv: float = 1.0) -> int:
    """A random length in tokens, at least 1, from a gamma distribution with mean `mean` and
    coefficient of variation `cv`.
    """
    return max(1, round(rng.gammavariate(1 / cv**2, mean * cv**2)))


def _arrival(at: float, tokens: int, output: int, shared: tuple[str, int]) -> Arrival:
    """An arrival whose prompt starts with blocks of a shared text; `shared` is the text's name and
    their number. The rest of the prompt is unique.
    """
    text, blocks = shared
    seed = random.Random(text).getrandbits(52)
    names = tuple(seed + block for block in range(min(blocks, tokens // BLOCK)))
    own = range(tokens // BLOCK - len(names))
    unique = random.Random(f"{text} {at}").getrandbits(52)
    return Arrival(at, tokens, output, (*names, *(unique + block for block in own)), BLOCK)


def _system_prompts(rng: random.Random, rate: float, seconds: float) -> Iterator[Arrival]:
    """Requests to 24 applications, each with its own system prompt of 1,000 to 8,000 tokens. The
    popularity of an application is proportional to 1/rank.
    """
    sizes = [rng.randrange(16, 128) for _ in range(24)]
    weights = [1 / rank for rank in range(1, len(sizes) + 1)]
    for at in _times(rng, seconds, lambda _: 80 * rate, 80 * rate):
        app = rng.choices(range(len(sizes)), weights)[0]
        tokens = sizes[app] * BLOCK + _tokens(rng, 800)
        yield _arrival(at, tokens, _tokens(rng, 200), (f"application {app}", sizes[app]))


def _tenants(rng: random.Random, rate: float, seconds: float) -> Iterator[Arrival]:
    """llm-d's benchmark: 150 tenants with 6,000 shared tokens, questions of 1,200 tokens, answers
    of 1,000.
    """
    for at in _times(rng, seconds, lambda _: 14 * rate, 14 * rate):
        tenant = f"tenant {rng.randrange(150)}"
        yield _arrival(at, 7200, 1000, (tenant, 6000 // BLOCK))


def _mixed(rng: random.Random, rate: float, seconds: float) -> Iterator[Arrival]:
    """Nine short questions for each document of 8,000 to 48,000 tokens."""
    for at in _times(rng, seconds, lambda _: 30 * rate, 30 * rate):
        long = rng.random() < 0.1
        tokens = rng.randrange(8_000, 48_000) if long else _tokens(rng, 400)
        yield _arrival(at, tokens, _tokens(rng, 300), ("", 0))


def _bursts(rng: random.Random, rate: float, seconds: float) -> Iterator[Arrival]:
    """Conversations in bursts: three times the mean rate in one minute of five. Each turn includes
    all previous turns.
    """
    calm, busy = 11 * rate, 66 * rate
    open_chats: list[tuple[int, int]] = []
    times = _times(rng, seconds, lambda at: busy if at % 300 < 60 else calm, busy)
    for born, at in enumerate(times):
        if open_chats and rng.random() < 0.75:
            chat, context = open_chats.pop(rng.randrange(len(open_chats)))
        else:
            chat, context = born, _tokens(rng, 1500)
        tokens, output = context + _tokens(rng, 200), _tokens(rng, 250)
        yield _arrival(at, tokens, output, (f"chat {chat}", tokens // BLOCK))
        if tokens < 16_000:
            open_chats.append((chat, tokens + output))


Maker = Callable[[random.Random, float, float], Iterator[Arrival]]
WORKLOADS: Mapping[str, tuple[Maker, float]] = {
    "system-prompts": (_system_prompts, 300.0),
    "tenants": (_tenants, 300.0),
    "mixed": (_mixed, 300.0),
    "bursts": (_bursts, 1800.0),
}
"""Generator and default duration in seconds of each synthetic workload. Their rates suit eight
replicas of the engine preset `h100`.
"""
