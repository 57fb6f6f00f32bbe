"""Drives a scheduler against the fake executor, as the engine does, and audits after every step."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core import FinishReason, Request, SamplingParams, StepOutput, StepPlan
from penstock.kv import BlockPool, PrefixCache
from penstock.scheduler import Limits, Scheduler

from tests.fakes.executor import FakeExecutor, FakeTicket, hash_chain, hash_root, next_token

EOS = 0
IDENTITY = b"i" * 32


def make_request(
    request_id: int, prompt: list[int], max_tokens: int = 4, **options: object
) -> Request:
    request_fields = {
        name: options.pop(name) for name in ("read_prefix_cache", "cache_salt") if name in options
    }
    params = SamplingParams(max_tokens=max_tokens, **options)  # type: ignore[arg-type]
    return Request(request_id, array("i", prompt), params, **request_fields)  # type: ignore[arg-type]


def reference(request: Request, vocab: int, max_model_len: int) -> tuple[list[int], FinishReason]:
    """The output of a request that is alone in the world."""
    context, output = list(request.prompt), []
    params = request.params
    while True:
        token = next_token(context, vocab)
        context.append(token)
        output.append(token)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if token in stops and len(output) > params.min_tokens:
            return output, FinishReason.STOP
        if len(output) >= params.max_tokens or len(context) >= max_model_len:
            return output, FinishReason.LENGTH


@dataclass
class Ending:
    tokens: list[int] = field(default_factory=list)
    rows: list[StepOutput] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE


class World:
    """`clock` counts steps. `in_flight` plans may be outstanding at once, as many as `stages`
    unless told.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 16,
        max_num_seqs: int = 4,
        budget: int = 32,
        max_model_len: int = 256,
        max_queue: int = 1000,
        prefix: bool = True,
        in_flight: int = 1,
        stages: int = 0,
        fail_at: int = 0,
        vocab: int = 97,
    ) -> None:
        self.now = 0.0
        self.limits = Limits(
            max_num_seqs,
            budget,
            max_model_len,
            max_queue,
            vocab,
            frozenset({EOS}),
            stages or in_flight,
        )
        self.pool = BlockPool(num_blocks)
        cache = (
            PrefixCache(self.pool, block_size, IDENTITY, hash_chain, hash_root) if prefix else None
        )
        self.scheduler = Scheduler(self.limits, self.pool, cache, block_size, lambda: self.now)
        self.executor = FakeExecutor(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=budget,
            vocab=vocab,
            fail_at=fail_at,
        )
        self.depth = in_flight
        self.flying: list[tuple[StepPlan, FakeTicket]] = []
        self.endings: dict[int, Ending] = {}
        self.plans: list[StepPlan] = []

    def add(self, request: Request) -> None:
        self.endings[request.id] = Ending()
        self.scheduler.add(request)

    def step(self) -> StepPlan | None:
        """Schedule one plan, then apply the oldest one when as many as may be are in flight."""
        self.now += 1.0
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            self.flying.append((plan, self.executor.submit(plan)))
        if self.flying and (plan is None or len(self.flying) >= self.depth):
            self._land()
        self.collect()
        self.scheduler.check()
        return plan

    def _land(self) -> None:
        plan, ticket = self.flying.pop(0)
        try:
            result = ticket.result()
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
            if not self.scheduler.has_requests() and not self.flying:
                return steps
            self.step()
        raise AssertionError(f"requests left after {most} steps: {self.scheduler.stats()}")
