"""The torch backend with random weights, driven by a small scheduler in this file. Unlike the
product's front door and scheduler, it does not need the compiled extension.
"""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.sizes import BLOCK, Sizes
from penstock.config import Raw, resolve
from penstock.core import Registration, StepPlan
from penstock.core.plan import LAST_SAMPLED
from penstock.model import load_model

GREEDY = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "choice": 0,
    "logprobs": -1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "bias": [],
    "allowed": [],
    "banned": [],
    "suppressed": [],
    "suppressed_until": 0,
}


@dataclass
class Rank:
    """One of several ranks of a model, with the settings that `penstock.executor.ranks` would
    pass.
    """

    rank: int
    ranks: int
    address: str
    key: str

    def pair(self, directory: Path, capacity: int) -> tuple[str, str]:
        """Shard and wiring as JSON."""
        from penstock.model.sharding import plan_grid

        grid = plan_grid(load_model(directory).spec, self.ranks, 1)
        wiring = {"before": None, "after": None, "patience_s": 60}
        return json.dumps(grid.shard(self.rank)), json.dumps(wiring | self.group(capacity))

    def group(self, capacity: int) -> dict[str, Any]:
        own = {"rank": self.rank, "ranks": self.ranks, "capacity": capacity}
        return {"group": own | {"address": self.address, "key": self.key}}


def open_backend(directory: Path, sizes: Sizes, rank: Rank | None = None) -> Any:
    from penstock.backends.torch.backend import TorchBackend
    from penstock.backends.torch.step import device as devices

    settings = {
        "dtype": "float32" if sizes.dry else "auto",
        "block_size": BLOCK,
        "max_num_batched_tokens": sizes.budget,
        "max_num_seqs": sizes.sequences,
        "tensor_parallel_size": 1 if rank is None else rank.ranks,
    }
    raw = {name: Raw("benchmark", (str(value),)) for name, value in settings.items()}
    config = resolve(raw, str(directory), "random").engine
    info = load_model(directory)
    device = devices.Cpu(1) if sizes.dry else devices.Cuda(0 if rank is None else rank.rank)
    pair = None if rank is None else rank.pair(directory, sizes.budget * info.spec.hidden)
    return TorchBackend(config, info, pair, device)


def fill(value: object) -> None:
    """Fill all matrices with random numbers, and norms with ones. Zeros would take less power and
    time.
    """
    if isinstance(value, torch.Tensor):
        if value.dim() > 1 and value.is_floating_point():
            value.normal_(0.0, 0.02)
        elif value.is_floating_point():
            value.fill_(1.0)
    elif isinstance(value, tuple):
        for item in value:
            fill(item)
    elif hasattr(value, "__dataclass_fields__") and type(value).__name__ != "Rotation":
        for name in value.__dataclass_fields__:
            fill(getattr(value, name))


@dataclass
class Request:
    """A request, and the arrival times of its tokens."""

    prompt: list[int]
    output: int
    shared: int = 0
    """Prompt tokens at the beginning whose KV another request computes."""
    slot: int = -1
    blocks: list[int] = field(default_factory=list)
    """Blocks of `shared` come first."""
    computed: int = 0
    registered: bool = False
    arrived: int = 0
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def left(self) -> int:
        """Tokens still to be computed; the last sampled token is never computed."""
        return len(self.prompt) + self.output - 1 - self.computed


def requests(sizes: Sequence[tuple[int, int]], vocabulary: int, prefix: int = 0) -> list[Request]:
    """Requests with random prompts and outputs of these lengths, after a common random prefix."""
    drawn = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [drawn.randrange(vocabulary) for _ in range(count)]

    common = tokens(prefix)
    return [
        Request([*common, *tokens(prompt)], output, shared=prefix if at else 0)
        for at, (prompt, output) in enumerate(sizes)
    ]


class Driver:
    """Schedules plans and processes their results, with two in flight. A request keeps its blocks
    until it ends.
    """

    def __init__(self, backend: Any, blocks: int, sizes: Sizes) -> None:
        self.backend, self.sizes = backend, sizes
        self.steps = 0
        self.tokens: list[int] = []
        """All tokens sampled in the last run, in step order."""
        self._free = deque(range(blocks))
        self._slots = deque(range(sizes.sequences))
        self._open: list[Request] = []
        self._flying: deque[tuple[Any, list[Request]]] = deque()
        self._prefix: list[int] = []
        """Blocks of the prefix that the requests of a run share."""

    def run(self, requests: Sequence[Request], concurrency: int) -> float:
        """Seconds until all requests are answered, with at most `concurrency` running."""
        began, waiting = time.perf_counter(), deque(requests)
        self.tokens, self._prefix = [], []
        try:
            while waiting or self._open:
                parts = self._decodes()
                parts += self._admitted(waiting, concurrency, self.sizes.budget - len(parts))
                if parts:
                    self.submit(parts)
                elif not self._flying:
                    raise RuntimeError(f"no room for a request: {len(self._free)} blocks are free")
                self.take(1 if parts else len(self._flying) - 1)
        finally:
            self._flying.clear()
            for own in list(self._open):
                self.release(own)
            self._free.extend(self._prefix)
        return time.perf_counter() - began

    def reserve(self, own: Request) -> bool:
        """Reserve a slot and blocks for the whole request, if there is room."""
        prefix = own.shared // BLOCK
        needed = -(-(len(own.prompt) + own.output) // BLOCK) - prefix
        if not self._slots or len(self._free) < needed:
            return False
        own.slot = self._slots.popleft()
        own.blocks = self._prefix[:prefix] + [self._free.popleft() for _ in range(needed)]
        own.computed = own.shared
        own.sent_s = time.perf_counter()
        self._open.append(own)
        return True

    def release(self, own: Request) -> None:
        self._open.remove(own)
        self._slots.append(own.slot)
        self._free.extend(block for block in own.blocks if block not in self._prefix)

    def submit(self, parts: Sequence[tuple[Request, list[int]]]) -> None:
        self.steps += 1
        plan, sampled = StepPlan(self.steps), []
        for own, tokens in parts:
            if not own.registered:
                plan.registrations.append(Registration(own.slot, json.dumps(GREEDY).encode()))
            plan.slots.append(own.slot)
            plan.starts.append(own.computed)
            plan.lengths.append(len(tokens))
            plan.sample.append(own.computed + len(tokens) >= len(own.prompt))
            plan.tokens.extend(tokens)
            plan.kept.append(len(own.blocks) if own.registered else 0)
            plan.added.extend([] if own.registered else own.blocks)
            plan.added_offsets.append(len(plan.added))
            own.computed += len(tokens)
            own.registered = True
            sampled += [own] if plan.sample[-1] else []
        self._flying.append((self.backend.submit(plan), sampled))

    def take(self, left: int) -> None:
        """Process the results of the oldest steps until at most `left` are in flight."""
        while len(self._flying) > max(0, left):
            step, sampled = self._flying.popleft()
            self.tokens += step.result().tokens
            now = time.perf_counter()
            for own in sampled:
                own.first_s, own.last_s = own.first_s or now, now
                own.arrived += 1
                if own.arrived == own.output:
                    self.release(own)

    def _decodes(self) -> list[tuple[Request, list[int]]]:
        return [(own, [LAST_SAMPLED]) for own in self._open if own.left > 0]

    def _admitted(
        self, waiting: deque[Request], concurrency: int, budget: int
    ) -> list[tuple[Request, list[int]]]:
        """Whole prompts within the budget. Prompts with a shared prefix wait for the plan after the
        one that computes the prefix.
        """
        found: list[tuple[Request, list[int]]] = []
        while waiting and len(self._open) < concurrency:
            own = waiting[0]
            if own.shared and any(not other.shared for other, _ in found):
                break
            if len(own.prompt) - own.shared > budget or not self.reserve(own):
                break
            waiting.popleft()
            if waiting and not own.shared:
                self._prefix = own.blocks[: waiting[0].shared // BLOCK]
            budget -= len(own.prompt) - own.computed
            found.append((own, own.prompt[own.computed :]))
        return found
