"""Runs requests on the torch backend with random weights and Penstock's scheduler. There is no API
server, because it needs the compiled extension.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.sizes import BLOCK, Sizes, blocks_of
from penstock.config import Raw, resolve
from penstock.core import FinishReason, GenerationParams, Registration, StepPlan, StepResult
from penstock.core import Request as EngineRequest
from penstock.kv import BlockHasher, KvCache
from penstock.kv.hashing import UNIT
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

SAMPLING = json.dumps(GREEDY).encode()


@dataclass
class Rank:
    """One of several ranks of a sharded model, with the settings that `penstock.executor.ranks`
    would pass to it.
    """

    rank: int
    ranks: int
    address: str
    key: str

    def pair(self, directory: Path, capacity: int) -> tuple[str, str]:
        """The rank's shard of the model, and its connections to other ranks, as JSON."""
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
    """Fill all matrices with random numbers, and norms with ones. With zeros, products would take
    less power and time.
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
    """A request, and the arrival times of its tokens in seconds of the performance counter."""

    prompt: list[int]
    output: int
    sent_s: float = 0.0
    """Time at which the scheduler admitted it."""
    first_s: float = 0.0
    last_s: float = 0.0


def requests(sizes: Sequence[tuple[int, int]], vocabulary: int, prefix: int = 0) -> list[Request]:
    """Requests with random prompts after a common random prefix. `sizes` has (prompt tokens, output
    tokens); `prefix` is the length of the prefix in tokens.
    """
    drawn = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [drawn.randrange(vocabulary) for _ in range(count)]

    common = tokens(prefix)
    return [Request([*common, *tokens(prompt)], output) for prompt, output in sizes]


def hash_chain(identity: bytes, parent: bytes | None, tokens: array[int]) -> list[bytes]:
    """Digests (prefix cache keys) of units of tokens. The rule is not Penstock's, which is in the
    compiled extension.
    """
    digests = [parent or identity]
    for at in range(0, len(tokens), UNIT):
        digests.append(hashlib.sha256(digests[-1] + tokens[at : at + UNIT].tobytes()).digest())
    return digests[1:]


class Driver:
    """Runs requests and plans on a backend, with at most two plans in flight."""

    def __init__(self, backend: Any, blocks: int, sizes: Sizes) -> None:
        self.backend, self.blocks, self.sizes = backend, blocks, sizes
        self.steps = 0
        self.tokens: list[int] = []
        """All tokens that were sampled in the last run, in the order of the steps."""
        self._flying: deque[tuple[StepPlan, Any]] = deque()

    def run(
        self, requests: Sequence[Request], concurrency: int, *, prefixes: bool = False
    ) -> float:
        """Run all requests, at most `concurrency` of them at once; returns the seconds until all
        are answered. With `prefixes`, a prefix that several prompts share is computed once.
        """
        scheduler, sent, ended = self._scheduler(prefixes=prefixes), 0, 0
        began, self.tokens = time.perf_counter(), []
        try:
            while ended < len(requests):
                for at in range(sent, min(ended + concurrency, len(requests))):
                    _send(scheduler, at, requests[at])
                    sent += 1
                plan = scheduler.schedule()
                if plan is not None:
                    self.submit(plan)
                for computed, result in self.take(1 if plan else len(self._flying) - 1):
                    scheduler.apply(computed, result)
                ended += self._record(scheduler, requests)
        finally:
            self._flying.clear()
        return time.perf_counter() - began

    def _scheduler(self, *, prefixes: bool) -> Any:
        """A scheduler for an offline batch: prompt tokens are not limited in steps that decode."""
        # Import it only now: `stand_in` must have replaced the compiled extension before.
        from penstock.scheduler import Limits, Scheduler

        sizes = self.sizes
        limits = Limits(
            max_num_seqs=sizes.sequences,
            max_num_batched_tokens=sizes.budget,
            max_model_len=sizes.longest,
            max_queue=sys.maxsize,
            vocab_size=sys.maxsize,
            eos_token_ids=frozenset(),
            arrivals=False,
        )
        # No request has a cache salt, so the function for the root of a salted chain is never
        # called.
        hasher = BlockHasher(BLOCK, bytes(32), hash_chain, lambda *_: b"") if prefixes else None
        return Scheduler(limits, KvCache(BLOCK, [self.blocks], hasher=hasher), time.perf_counter)

    def _record(self, scheduler: Any, requests: Sequence[Request]) -> int:
        """Record the arrival times of tokens; returns the number of requests that ended."""
        ended, now, rows = 0, time.perf_counter(), scheduler.take_outputs()
        self.tokens += rows.tokens
        columns = zip(rows.ids, rows.finish, rows.queue_us, strict=True)
        for row, (at, finish, queue_us) in enumerate(columns):
            if finish not in (FinishReason.NONE, FinishReason.LENGTH):
                reason = f"{FinishReason(finish).name} {rows.errors.get(row, '')}"
                raise RuntimeError(f"request {at} ended as {reason}")
            own = requests[at]
            own.sent_s += queue_us / 1e6
            own.first_s, own.last_s = own.first_s or now, now
            ended += finish == FinishReason.LENGTH
        return ended

    def submit(self, plan: StepPlan) -> None:
        self.steps += 1
        self._flying.append((plan, self.backend.submit(plan)))

    def take(self, left: int) -> Iterator[tuple[StepPlan, StepResult]]:
        """Yield the oldest plans with their results, until at most `left` plans are in flight."""
        while len(self._flying) > max(0, left):
            plan, step = self._flying.popleft()
            yield plan, step.result()

    def drain(self, left: int) -> None:
        """Wait until at most `left` plans are in flight."""
        for _ in self.take(left):
            pass


def _send(scheduler: Any, number: int, own: Request) -> None:
    own.sent_s, own.first_s = time.perf_counter(), 0.0
    parameters = GenerationParams(max_tokens=own.output, ignore_eos=True)
    prompt = array("i", own.prompt)
    scheduler.add(EngineRequest(number, prompt, parameters, own.sent_s, sampling=SAMPLING))


def decode_plans(rows: int, context: int, steps: int, vocabulary: int) -> Iterator[StepPlan]:
    """Plans that decode one token for each of `rows` sequences. The tokens before it count as
    computed: `context` - 1 of them in the first plan, and one more in each further plan.
    """
    drawn, entries = random.Random(1), blocks_of(context + steps)
    tokens = [drawn.randrange(vocabulary) for _ in range(rows)]
    for step in range(steps):
        plan = StepPlan(step + 1)
        plan.slots.extend(range(rows))
        plan.starts.extend([context - 1 + step] * rows)
        plan.lengths.extend([1] * rows)
        plan.sample.extend([True] * rows)
        plan.tokens.extend(tokens)
        plan.kept.extend([entries if step else 0] * rows)
        if not step:
            plan.registrations.extend(Registration(slot, SAMPLING) for slot in range(rows))
            plan.added.extend(range(rows * entries))
        plan.added_offsets.extend((at + 1) * entries * (not step) for at in range(rows))
        yield plan
