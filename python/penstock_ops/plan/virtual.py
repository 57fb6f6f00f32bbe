"""Simulates a replica in virtual time. Requests are batched as by Penstock's scheduler, and step
times come from a model.

In a step, decodes come first, then prompts in chunks within the token budget, oldest first. Slots
and KV limit the number of requests. Consecutive steps that only decode, between two events (an
arrival or an end), are computed at once. A test compares the results with the real scheduler.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._native import PromptBudget
from penstock_ops.plan.prefixes import Prefixes

StepTime = Callable[[float, float, float, float], float]
"""Function (number of decodes, average tokens that each attends to, prompt tokens, pairs of a
prompt token and a token before its chunk) -> seconds of the step.
"""
Settling = Callable[[float, float], float]
"""Function (number of decodes, number of steps since one with prompt tokens) -> additional seconds
of the step. They are due to weights that first return to the CPU caches.
"""
ALIKE = 4
"""At most this many steps of a run of equal ones are reported to the pacing. It averages step
times, so more would have little effect.
"""
NOTICED = 0.01
"""The additional seconds of a step are ignored if they are less than this share of the step."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    isl: int
    osl: int
    names: tuple[int, ...] = ()
    """Names of the prompt's blocks. Prompts with equal leading names have equal prefixes. Empty if
    unknown.
    """
    block: int = 0
    """Tokens in a block of `names`; the last block may have fewer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a simulated replica."""

    sequences: int
    chunk: int
    """Maximum number of tokens in a step."""
    kv_tokens: int
    """Capacity of the KV memory in tokens. A running request occupies all its input and output
    tokens.
    """
    paced: bool = False
    """Whether prompt tokens are limited in steps with decodes, as in Penstock's scheduler."""


@dataclass(slots=True)
class Served:
    """Times of one request in seconds of virtual time."""

    arrived: float
    first: float = math.inf
    end: float = math.inf
    osl: int = 1

    @property
    def ttft(self) -> float:
        return self.first - self.arrived

    @property
    def tpot(self) -> float:
        return (self.end - self.first) / (self.osl - 1) if self.osl > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulated replica for a workload."""

    served: tuple[Served, ...]
    seconds: float
    """Seconds from the first arrival to the last token."""
    busy: float
    """Seconds that the replica spent in steps."""
    pooled: int = 0
    """Number of prompt tokens found in the KV memory."""
    stored: int = 0
    """Number of prompt tokens loaded from tiers."""

    def times(self, metric: str) -> list[float]:
        """`ttft`, `tpot` or `e2el` of each request in seconds, ascending."""
        return sorted(
            each.end - each.arrived if metric == "e2el" else float(getattr(each, metric))
            for each in self.served
        )

    def percentile(self, metric: str, share: float) -> float:
        """Percentile of a metric of `times` in seconds: the smallest value that a share of at least
        `share` (0 to 1) of the requests does not exceed.
        """
        values = self.times(metric)
        return values[max(math.ceil(share * len(values)) - 1, 0)] if values else 0.0


@dataclass(slots=True)
class _Prompt:
    request: Served
    arrival: Arrival
    left: int
    """Number of prompt tokens that are not computed yet."""


class Replica:
    """A simulated replica. `prefixes` is its prefix cache; None if every prompt is computed
    completely.
    """

    def __init__(
        self,
        step: StepTime,
        limits: Limits,
        prefixes: Prefixes | None = None,
        settling: Settling = lambda _decodes, _since: 0.0,
    ) -> None:
        self._step, self._limits, self._prefixes, self._settling = step, limits, prefixes, settling
        self._since = 0
        """Number of steps since the last one with prompt tokens."""
        self._loading: list[tuple[float, int, _Prompt]] = []
        """Heap of prompts whose prefix is being loaded from a tier: (time when it is loaded, serial
        number, prompt).
        """
        self._loaded = 0.0
        """Time when the last of these loads ends. Loads run one after the other."""
        self._pooled = self._stored = 0
        self._waiting: deque[tuple[Served, Arrival]] = deque()
        self._prompts: deque[_Prompt] = deque()
        self._ends: list[tuple[int, int, Served, int]] = []
        """Heap of decoding requests: (count of steps at which it ends, serial number, request,
        tokens that it occupies).
        """
        self._held = self._decoded = self._number = 0
        self._context = 0.0
        """Total number of tokens that all decodes attend to."""
        self._now = self._busy = 0.0
        self._pacing = PromptBudget()

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Simulate all requests to their ends. Requests that are too large for the KV memory never
        end.
        """
        served = [Served(arrival.at, osl=arrival.osl) for arrival in arrivals]
        coming = deque(zip(served, arrivals, strict=True))
        while coming or self._waiting or self._prompts or self._ends or self._loading:
            if not (self._waiting or self._prompts or self._ends):
                self._now = max(self._now, self._next(coming))
            while coming and coming[0][1].at <= self._now:
                self._waiting.append(coming.popleft())
            while self._loading and self._loading[0][0] <= self._now:
                self._prompts.append(heapq.heappop(self._loading)[2])
            self._admit()
            if not (self._prompts or self._ends):
                if self._loading:
                    self._now = max(self._now, self._next(coming))
                else:
                    self._waiting.clear()
                continue
            self._advance(self._next(coming))
        start = arrivals[0].at if arrivals else 0.0
        return Outcome(tuple(served), self._now - start, self._busy, self._pooled, self._stored)

    def _next(self, coming: Sequence[tuple[Served, Arrival]]) -> float:
        """Virtual time of the next arrival or the next end of a load."""
        arrival = coming[0][1].at if coming else math.inf
        return min(arrival, self._loading[0][0] if self._loading else math.inf)

    def _admit(self) -> None:
        while self._waiting and self._running < self._limits.sequences:
            request, arrival = self._waiting[0]
            needed = arrival.isl + arrival.osl
            if self._held + needed > self._limits.kv_tokens:
                return
            self._held += needed
            self._waiting.popleft()
            prompt = _Prompt(request, arrival, arrival.isl)
            if not (self._prefixes and arrival.names and self._reuse(self._prefixes, prompt)):
                self._prompts.append(prompt)

    @property
    def _running(self) -> int:
        return len(self._prompts) + len(self._ends) + len(self._loading)

    def _reuse(self, prefixes: Prefixes, prompt: _Prompt) -> bool:
        """Skip the cached tokens of a prompt; returns whether it waits for a load. A stored prefix
        is computed instead of loaded if that is faster.
        """
        arrival, room = prompt.arrival, self._limits.kv_tokens - self._held
        found = prefixes.find(arrival.names, arrival.block, arrival.isl, room)
        prompt.left -= found.pooled
        self._pooled += found.pooled
        if not found.stored:
            return False
        ready = max(self._now, self._loaded) + found.seconds
        pairs = found.stored * found.pooled
        if ready - self._now >= self._step(0, 0.0, found.stored, pairs):
            return False
        self._loaded = ready
        prompt.left -= found.stored
        self._stored += found.stored
        self._number += 1
        heapq.heappush(self._loading, (ready, self._number, prompt))
        return True

    def _advance(self, until: float) -> None:
        decodes = len(self._ends)
        if self._prompts:
            self._mixed(decodes)
            return
        steps = self._ends[0][0] - self._decoded
        average = self._context / decodes
        each = self._step(decodes, average, 0.0, 0.0)
        late = self._settling(decodes, self._since)
        if late > NOTICED * each:
            self._since += 1
            self._pacing.observe(decodes, 0, each + late)
            self._passed(each + late, 1, decodes)
            return
        if until < math.inf:
            steps = min(steps, max(math.ceil((until - self._now) / each), 1))
        if steps > 1:
            each = self._step(decodes, average + steps / 2, 0.0, 0.0)
        for _ in range(min(steps, ALIKE)):
            self._pacing.observe(decodes, 0, each)
        self._since += steps
        self._passed(steps * each, steps, decodes)

    def _mixed(self, decodes: int) -> None:
        """Simulate one step with prompt tokens and `decodes` decodes."""
        average = self._context / decodes if decodes else 0.0
        shares = self._shares(self._budget(decodes))
        seconds = self._seconds(decodes, average, shares)
        self._pacing.observe(decodes, sum(shares), seconds)
        for prompt, share in zip(self._prompts, shares, strict=False):
            prompt.left -= share
        self._since = 0 if shares else self._since + 1
        self._passed(seconds, 1, decodes)
        while self._prompts and not self._prompts[0].left:
            self._begin(self._prompts.popleft())

    def _budget(self, decodes: int) -> int:
        """Maximum number of prompt tokens in the step. Occasionally 0, so that pacing can measure
        the time of decodes without prompts.
        """
        most = max(self._limits.chunk - decodes, 1)
        return self._pacing.tokens(decodes, most) if self._limits.paced else most

    def _shares(self, budget: int) -> list[int]:
        """Number of tokens of each prompt that the step computes, oldest prompt first, within
        `budget`.
        """
        shares = []
        for prompt in self._prompts:
            if budget <= 0:
                break
            shares.append(min(prompt.left, budget))
            budget -= shares[-1]
        return shares

    def _seconds(self, decodes: int, average: float, shares: Sequence[int]) -> float:
        """Seconds of a step that computes these `shares` of the prompts."""
        done = (prompt.arrival.isl - prompt.left for prompt in self._prompts)
        pairs = sum(share * before for share, before in zip(shares, done, strict=False))
        return self._step(decodes, average, sum(shares), pairs)

    def _passed(self, seconds: float, steps: int, decodes: int) -> None:
        self._now += seconds
        self._busy += seconds
        self._decoded += steps
        self._context += steps * decodes
        while self._ends and self._ends[0][0] <= self._decoded:
            _, _, request, tokens = heapq.heappop(self._ends)
            self._finish(request, tokens)
            self._context -= tokens

    def _begin(self, prompt: _Prompt) -> None:
        request, arrival = prompt.request, prompt.arrival
        request.first = self._now
        if self._prefixes and arrival.names:
            self._prefixes.keep(arrival.names, arrival.block, arrival.isl)
        tokens = arrival.isl + arrival.osl
        if arrival.osl == 1:
            self._finish(request, tokens)
            return
        self._number += 1
        self._context += arrival.isl + 1
        end = self._decoded + arrival.osl - 1
        heapq.heappush(self._ends, (end, self._number, request, tokens))

    def _finish(self, request: Served, tokens: int) -> None:
        request.end = self._now
        self._held -= tokens
