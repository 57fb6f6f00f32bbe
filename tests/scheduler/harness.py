"""Drives a scheduler against the fake executor, as the engine does, and audits after every step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.core import FinishReason, GenerationParams, Pooling, Request, StepOutput, StepPlan
from penstock.kv import BlockHasher, KvCache, KvEvents
from penstock.kv.tiers import Tiers
from penstock.scheduler import Drafter, Limits, Scheduler
from penstock.scheduler.limits import AHEAD_SECONDS
from tests.fakes.executor import (
    FakeExecutor,
    FakeFuture,
    hash_chain,
    hash_root,
    next_state,
    next_token,
    seen_by_all,
    state_after,
)
from tests.fakes.sampling import encode

EOS = 0
SAMPLING = ("temperature", "top_k", "top_p", "seed", "choice", "logprobs")
IDENTITY = b"i" * 32


def make_request(
    request_id: int, prompt: list[int], max_tokens: int = 4, **options: object
) -> Request:
    request_fields = {
        name: options.pop(name)
        for name in (
            "read_prefix_cache",
            "cache_salt",
            "needs_history",
            "grammar",
            "priority",
            "pool",
            "resumed",
            "expires",
        )
        if name in options
    }
    drawn = {name: options.pop(name) for name in SAMPLING if name in options}
    request_fields["sampling"] = encode(**drawn)  # type: ignore[arg-type]
    params = GenerationParams(max_tokens=max_tokens, **options)  # type: ignore[arg-type]
    tokens = array("i", prompt)
    return Request(request_id, tokens, params, **request_fields)  # type: ignore[arg-type]


def reference(
    request: Request,
    vocab: int,
    max_model_len: int,
    windows: Sequence[int | None] = (None,),
    *,
    has_state: bool = False,
) -> tuple[list[int], FinishReason]:
    """The output of a request that is alone in the world, without what it had before."""
    context, output = list(request.prompt), [-1] * request.resumed
    state = state_after(context)
    sees = seen_by_all(windows) or max_model_len
    params = request.params
    while True:
        token = next_token(context[-sees:], vocab, state if has_state else b"")
        context.append(token)
        state = next_state(state, token)
        output.append(token)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if token in stops and len(output) > params.min_tokens:
            return output[request.resumed :], FinishReason.STOP
        if len(output) >= params.max_tokens or len(context) >= max_model_len:
            return output[request.resumed :], FinishReason.LENGTH


class RandomDrafter:
    """Right at random, so that any number of drafts is accepted."""

    active = True

    def __init__(
        self,
        draw: Random,
        vocab: int = 97,
        windows: Sequence[int | None] = (None,),
        *,
        has_state: bool = False,
    ) -> None:
        self._draw = draw
        self._has_state = has_state
        self._vocab = vocab
        self._sees = seen_by_all(windows) or 0

    def propose(self, tokens: array[int], most: int) -> list[int]:
        context, known = list(tokens), len(tokens)
        for _ in range(self._draw.randint(0, min(most, 5))):
            state = state_after(context) if self._has_state else b""
            right = next_token(context[-self._sees :], self._vocab, state)
            wrong = self._draw.randrange(self._vocab)
            context.append(right if self._draw.random() < 0.7 else wrong)
        return context[known:]


@dataclass
class Ending:
    tokens: list[int] = field(default_factory=list)
    rows: list[StepOutput] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE


class RecordingHasher(BlockHasher):
    """Remembers, for each digest, the position and the state after its tokens."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size, IDENTITY, hash_chain, hash_root)
        self.states: dict[bytes, tuple[int, bytes]] = {}

    def digests(
        self, tokens: array[int], known: list[bytes], salt: bytes, adapter: int = 0
    ) -> list[bytes]:
        found = super().digests(tokens, known, salt, adapter)
        for block, digest in enumerate(found, start=len(known) + 1):
            if digest not in self.states:
                end = block * self.block_size
                self.states[digest] = end, state_after(tokens[:end])
        return found


class World:
    """`clock` counts steps. `in_flight` plans may be outstanding at once, on as many `stages`
    unless given. `num_blocks` and `windows` have an entry for each KV group.
    """

    def __init__(
        self,
        *,
        num_blocks: int | Sequence[int] = 64,
        windows: Sequence[int | None] = (None,),
        block_size: int = 16,
        max_num_seqs: int = 4,
        budget: int = 32,
        max_model_len: int = 256,
        max_queue: int = 1000,
        prefix: bool = True,
        in_flight: int = 1,
        stages: int = 0,
        fail_at: Sequence[int] = (),
        vocab: int = 97,
        drafter: Drafter | None = None,
        by_priority: bool = False,
        pooling: Pooling = Pooling.LAST,
        late: Callable[[], bool] = lambda: False,
        max_wait: float = math.inf,
        arrivals: bool = True,
        ahead_seconds: float = AHEAD_SECONDS,
        step_seconds: Callable[[StepPlan], float] = lambda plan: 0.0,
        events: KvEvents | None = None,
        states: int = 0,
    ) -> None:
        self.now = 0.0
        self.has_state = states > 0
        self.events = events
        self.windows = windows
        self.reported = windows.index(None) if None in windows else 0
        self.limits = Limits(
            max_num_seqs,
            budget,
            max_model_len,
            max_queue,
            vocab,
            frozenset({EOS}),
            stages or in_flight,
            by_priority,
            pooling,
            max_wait,
            arrivals,
            ahead_seconds,
        )
        self.executor = self.make_executor(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=budget,
            windows=windows,
            vocab=vocab,
            fail_at=fail_at,
            depth=in_flight,
            late=late,
            step_seconds=step_seconds,
            states=states,
        )
        self.hasher = hasher = RecordingHasher(block_size) if prefix else None
        self.kv = KvCache(
            block_size,
            self.executor.num_blocks,
            windows=windows,
            step_tokens=budget,
            hasher=hasher,
            events=self.events,
            states=states,
        )
        self.scheduler = Scheduler(
            self.limits, self.kv, lambda: self.now, self.make_tiers(), drafter
        )
        self.depth = in_flight
        self.in_flight: list[tuple[StepPlan, FakeFuture]] = []
        self.endings: dict[int, Ending] = {}
        self.plans: list[StepPlan] = []

    def make_executor(self, **options: Any) -> FakeExecutor:
        return FakeExecutor(**options)

    def make_tiers(self) -> Tiers | None:
        return None

    def reference(self, request: Request) -> tuple[list[int], FinishReason]:
        limits = self.limits
        return reference(
            request,
            limits.vocab_size,
            limits.max_model_len,
            self.windows,
            has_state=self.has_state,
        )

    def add(self, request: Request) -> None:
        self.endings[request.id] = Ending()
        self.scheduler.add(request)

    def step(self) -> StepPlan | None:
        """Schedule one plan, then apply the oldest one when as many as may be are in flight."""
        self.now += 1.0
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            self.in_flight.append((plan, self.executor.submit(plan)))
        if self.in_flight and (plan is None or len(self.in_flight) >= self.depth):
            self._apply_oldest()
        self.collect()
        self.scheduler.check()
        if self.has_state and self.hasher is not None:
            self.check_checkpoints(self.hasher)
        return plan

    def check_checkpoints(self, hasher: RecordingHasher) -> None:
        """Each slot with a name has the state after the tokens of its name, and the KV blocks
        before are not all that is left of it.
        """
        states = self.kv.states
        named = {digest: slot for digest in hasher.states if (slot := states.find(digest)) >= 0}
        assert len(named) == states.named
        for digest, slot in named.items():
            assert self.executor.states[slot] == hasher.states[digest]
            assert self.kv.pools[self.reported].find(digest) >= 0

    def _apply_oldest(self) -> None:
        plan, future = self.in_flight.pop(0)
        try:
            result = future.result()
        except RuntimeError as error:
            self.scheduler.fail(plan, str(error))
        else:
            self.scheduler.apply(plan, result)

    def collect(self) -> None:
        outputs = self.scheduler.take_outputs()
        for row in outputs.rows():
            ending = self.endings[row.id]
            assert ending.finish is FinishReason.NONE, f"a row after the end of request {row.id}"
            ending.rows.append(row)
            ending.tokens.extend(row.tokens)
            ending.finish = row.finish

    def run(self, most: int = 10_000) -> int:
        """Steps until nothing is left; fails when that takes more than `most`."""
        for steps in range(most):
            if not self.scheduler.has_requests() and not self.in_flight:
                return steps
            self.step()
        raise AssertionError(f"requests left after {most} steps: {self.scheduler.stats()}")
