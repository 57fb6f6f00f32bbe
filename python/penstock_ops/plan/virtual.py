"""Simulates a replica in virtual time: batching like the scheduler's, step times from a model.

Decodes come first, then prompts in chunks within the token budget, oldest first, limited by slots
and KV. Consecutive decode-only steps between two events (arrivals, ends) are computed at once. A
test compares it with the real scheduler.
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
"""Seconds of a step, by number of decodes, average tokens that each sees, prompt tokens, and pairs
of a prompt token and a token before its chunk.
"""
Settling = Callable[[float, float], float]
"""Additional seconds of a step, by number of decodes and number of steps since one with prompt
tokens: weights return to the caches.
"""
ALIKE = 4
"""Steps of equal length from which pacing learns. It averages, so more would have little effect."""
NOTICED = 0.01
"""Share of a step below which this is ignored."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    isl: int
    osl: int
    names: tuple[int, ...] = ()
    """Names of the prompt's blocks: equal leading names mean equal prefixes. Empty if unknown."""
    block: int = 0
    """Tokens in a block; the last one may be partial."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a replica."""

    sequences: int
    chunk: int
    """Token budget of a step."""
    kv_tokens: int
    """Capacity of its KV in tokens. A request occupies its prompt and output tokens."""
    paced: bool = False
    """Whether prompt tokens beside decodes are paced, as in Penstock's scheduler."""


@dataclass(slots=True)
class Served:
    """Times of one request in seconds."""

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
    """Result of one replica for a workload."""

    served: tuple[Served, ...]
    seconds: float
    """From the first arrival to the last token."""
    busy: float
    """Seconds spent in steps."""
    pooled: int = 0
    """Prompt tokens found in the KV."""
    stored: int = 0
    """Prompt tokens loaded from tiers."""

    def percentile(self, metric: str, share: float) -> float:
        """Percentile of `ttft`, `tpot` or `e2el` in seconds: the smallest value that at least
        `share` of the requests do not exceed.
        """
        values = sorted(
            each.end - each.arrived if metric == "e2el" else float(getattr(each, metric))
            for each in self.served
        )
        return values[max(math.ceil(share * len(values)) - 1, 0)] if values else 0.0


@dataclass(slots=True)
class _Prompt:
    request: Served
    arrival: Arrival
    left: int
    """Tokens that are not computed yet."""


class Replica:
    """Simulated replica. `prefixes` caches prompts; None: every prompt is computed completely."""

    def __init__(
        self,
        step: StepTime,
        limits: Limits,
        prefixes: Prefixes | None = None,
        settling: Settling = lambda _decodes, _since: 0.0,
    ) -> None:
        self._step, self._limits, self._prefixes, self._settling = step, limits, prefixes, settling
        self._since = 0
        """Steps since the last one with prompt tokens."""
        self._loading: list[tuple[float, int, _Prompt]] = []
        """Prompts whose prefix is being loaded from a tier: ready time, number, prompt."""
        self._loaded = 0.0
        """End of the last of these loads, which are sequential."""
        self._pooled = self._stored = 0
        self._waiting: deque[tuple[Served, Arrival]] = deque()
        self._prompts: deque[_Prompt] = deque()
        self._ends: list[tuple[int, int, Served, int]] = []
        """Decodes by the step count at which they end: end, number, request, tokens."""
        self._held = self._decoded = self._number = 0
        self._context = 0.0
        """Tokens that all decodes together see."""
        self._now = self._busy = 0.0
        self._pacing = PromptBudget()

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Simulate all requests to their ends. Requests too large for the KV never end."""
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
        """Time of the next arrival or end of a load."""
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
        """Skip cached tokens; returns whether the prompt waits for a load. Prefixes that compute
        faster are not loaded.
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
        """Simulate one step while there are prompts."""
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
        """Prompt tokens in the step. 0 lets pacing measure the cost of the decodes alone."""
        most = max(self._limits.chunk - decodes, 1)
        return self._pacing.tokens(decodes, most) if self._limits.paced else most

    def _shares(self, budget: int) -> list[int]:
        """Tokens of the first prompts, oldest first."""
        shares = []
        for prompt in self._prompts:
            if budget <= 0:
                break
            shares.append(min(prompt.left, budget))
            budget -= shares[-1]
        return shares

    def _seconds(self, decodes: int, average: float, shares: Sequence[int]) -> float:
        """Seconds of a step with these `shares` of the prompts."""
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
