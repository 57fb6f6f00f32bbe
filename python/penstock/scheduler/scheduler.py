"""The scheduler: token budget, chunked prefill, preemption by recomputation, shared prefixes.

    add, cancel        at any time
    schedule()         -> StepPlan or None. A sequence in a plan is busy until that plan is applied or failed,
                       so several plans can be in flight
    apply(plan, result), fail(plan, message)
    take_outputs()     -> rows for the clients since the last call

Invariants (tests/scheduler checks them after each step):

* Every added request gets exactly one row that is not NONE, and no row after it.
* `running` and `waiting` are sorted by arrival; the oldest running sequence can take blocks from
  all others, so somebody always advances.
* A sequence enters with the blocks of all its known tokens, so only growth beyond them can run out
  of blocks.
* A block's name is published when a step that filled it is applied, never before.
"""

from __future__ import annotations

import sys
from array import array
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import (
    EngineStats,
    FinishReason,
    InvalidValueError,
    LogprobRow,
    Request,
    StepOutputs,
    StepPlan,
    StepResult,
)
from penstock.kv import BlockPool, PoolCorruptError, PrefixCache
from penstock.kv_tiers import NOTHING, NoTiers, Tiers
from penstock.scheduler.outbox import Outbox
from penstock.scheduler.planning import Work, build_plan
from penstock.scheduler.sequence import NO_SLOT, Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step and one request may take. `max_queue` bounds the requests that wait for a slot.

    With several `stages` as many plans are in flight, and the decoding sequences are spread over
    them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_queue: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    stages: int = 1

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise InvalidValueError("max_num_seqs", self.max_num_seqs, "at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidValueError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_num_seqs ({self.max_num_seqs})",
            )


class Scheduler:
    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        prefix: PrefixCache | None,
        block_size: int,
        clock: Callable[[], float],
        tiers: Tiers | None = None,
    ) -> None:
        self.limits = limits
        self.tiers: Tiers = tiers if tiers is not None else NoTiers()
        self._pool = pool
        self._prefix = prefix
        self._block_size = block_size
        self._clock = clock
        self._sequences: dict[int, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._in_flight: dict[int, Work] = {}
        self._claimed: dict[bytes, Sequence] = {}
        self._outbox = Outbox(clock)
        self._arrivals = 0
        self._step = 0
        self._preemptions = 0
        self._query_tokens = 0
        self._hit_tokens = 0

    # Intake ---------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request, or answer it at once with ERROR or REJECTED. Ids of live requests are
        distinct.
        """
        if request.id in self._sequences:
            raise InvalidValueError("request id", request.id, "an id that no live request has")
        self._arrivals += 1
        seq = self._new_sequence(request)
        fault = self._refusal(request)
        if fault:
            self._outbox.end(seq, FinishReason.ERROR, fault)
        elif len(self._waiting) >= self.limits.max_queue:
            fault = f"{len(self._waiting)} requests are waiting already, the limit of --max-num-queued-reqs"
            self._outbox.end(seq, FinishReason.REJECTED, fault)
        else:
            self._sequences[request.id] = seq
            self._waiting.append(seq)

    def cancel(self, request_id: int) -> None:
        """End a request as CANCELLED: now, or when the plan that holds it is applied. Ignores
        unknown ids.
        """
        seq = self._sequences.get(request_id)
        if seq is None:
            return
        if seq.busy:
            seq.cancelled = True
        else:
            self._finish(seq, FinishReason.CANCELLED)
            self._drop_vacated()

    def cancel_all(self) -> None:
        for request_id in list(self._sequences):
            self.cancel(request_id)

    def _new_sequence(self, request: Request) -> Sequence:
        params = request.params
        prompt_len = len(request.prompt)
        stops = frozenset(params.stop_token_ids)
        return Sequence(
            request=request,
            order=self._arrivals,
            prompt_len=prompt_len,
            length_limit=min(prompt_len + params.max_tokens, self.limits.max_model_len),
            min_length=prompt_len + params.min_tokens,
            stops=stops if params.ignore_eos else stops | self.limits.eos_token_ids,
            reads_cache=request.read_prefix_cache and params.prompt_logprobs < 0,
            prompt_logprobs=params.prompt_logprobs,
            tokens=request.prompt[:],
        )

    def _refusal(self, request: Request) -> str:
        prompt, limits = request.prompt, self.limits
        if len(prompt) >= limits.max_model_len:
            return f"the prompt has {len(prompt)} tokens, the maximum model length is {limits.max_model_len}"
        if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
            return f"the prompt holds a token id outside the vocabulary of {limits.vocab_size}"
        needed = self._blocks_for(len(prompt) + 1)
        if needed > self._pool.num_blocks:
            return self._too_large(needed)
        return ""

    def _too_large(self, needed: int) -> str:
        return (
            f"the request needs {needed} KV blocks of {self._block_size} tokens, the pool has "
            f"{self._pool.num_blocks}: raise --kv-cache-memory-bytes or shorten the request"
        )

    # Scheduling -----------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Choose the next step: a token for each decoding sequence, then prompt chunks, then
        newcomers.
        """
        if self.tiers.busy:
            self._take_in_loaded()
        work: Work = []
        budget = self._schedule_decodes(work)
        budget = self._schedule_chunks(work, budget)
        if self._waiting and budget and self._slots:
            self._admit(work, budget)
        if not work:
            return None
        self._step += 1
        for seq, _ in work:
            seq.busy = True
        self._in_flight[self._step] = work
        return build_plan(self._step, work, self._block_size)

    def _schedule_decodes(self, work: Work) -> int:
        size, free_slots = self._block_size, len(self._slots)
        share = self._share()
        for seq in self._running:
            known = len(seq.tokens)
            if seq.num_computed + 1 != known or seq.busy or seq.slot < 0:
                continue
            if len(seq.blocks) * size >= known or self._grow(seq):
                work.append((seq, 1))
                if len(work) == share:
                    break
        if len(self._slots) != free_slots:
            self._drop_vacated()
        return self.limits.max_num_batched_tokens - len(work)

    def _share(self) -> int:
        """How many sequences decode in one plan, so that the plans for all stages are equally
        large.
        """
        stages = self.limits.stages
        if stages == 1:
            return len(self._running)
        return -(-sum(seq.num_computed + 1 == len(seq.tokens) for seq in self._running) // stages)

    def _grow(self, seq: Sequence) -> bool:
        """Give a block to a sequence, taking from the latest arrivals; False when it stands still
        or ended.

        A sequence that stands still keeps its blocks: an older one takes them when it needs them.
        It stands still too while blocks that were taken from others are copied to RAM.
        """
        while not self._pool.available:
            if self.tiers.parking:
                return False
            victim = next(
                (other for other in reversed(self._running) if not other.busy and other.slot >= 0),
                seq,
            )
            if victim.order > seq.order:
                self._preempt(victim)
                continue
            needed = len(seq.blocks) + 1
            if needed > self._pool.num_blocks:
                self._finish(seq, FinishReason.ERROR, error=self._too_large(needed))
            return False
        seq.blocks.append(self._pool.take())
        return True

    def _schedule_chunks(self, work: Work, budget: int) -> int:
        for seq in self._running:
            if not budget:
                break
            if len(seq.tokens) - seq.num_computed > 1 and not seq.busy:
                budget -= self._schedule_chunk(work, seq, budget)
        return budget

    def _schedule_chunk(self, work: Work, seq: Sequence, budget: int) -> int:
        """As much as the budget and what the sequence awaits from the tiers allow."""
        length = min(min(len(seq.tokens), seq.fetch.bound()) - seq.num_computed, budget)
        if length <= 0:
            return 0
        work.append((seq, length))
        if seq.fetch.there:
            self.tiers.computing(seq.fetch, seq.num_computed + length)
        return length

    def _admit(self, work: Work, budget: int) -> None:
        """First come, first served, except that all pass a sequence that awaits a prefix."""
        admitted = False
        for seq in self._waiting:
            if not budget or not self._slots:
                break
            hits = self._find_prefix(seq)
            if hits is None:
                continue
            if not self._enter(seq, hits):
                break
            admitted = True
            budget -= self._schedule_chunk(work, seq, budget)
        if admitted:
            self._waiting = [seq for seq in self._waiting if seq.slot < 0]

    def _find_prefix(self, seq: Sequence) -> list[int] | None:
        """Cached blocks to start from; None while a running sequence computes the next one to
        share, or tiers have not said yet what they have.

        At least the last known token is computed: its logits are needed.
        """
        if self._prefix is None:
            return []
        if seq.awaits in self._claimed:
            return None
        seq.digests.extend(self._prefix.digests(seq.tokens, seq.digests, seq.request.cache_salt))
        if not seq.reads_cache:
            return []
        limit = (len(seq.tokens) - 1) // self._block_size
        hits = self._prefix.lookup(seq.digests, limit)
        if len(hits) < limit and seq.digests[len(hits)] in self._claimed:
            seq.awaits = seq.digests[len(hits)]
            return None
        if seq.fetch is NOTHING:
            seq.fetch = self.tiers.ask(seq.digests, len(hits))
        if not self.tiers.settled(seq.fetch):
            return None
        return hits[: self.tiers.choose(seq.fetch, len(hits))]

    def _enter(self, seq: Sequence, hits: list[int]) -> bool:
        """Move a sequence to running with blocks for all it knows; False when the pool cannot give
        them.

        One block for each running sequence is left to grow into, so that an entry is not undone at
        once.
        """
        pool = self._pool
        missing = self._blocks_for(len(seq.tokens)) - len(hits)
        if missing + len(self._running) > pool.available - sum(map(pool.is_free, hits)):
            return False
        for block in hits:
            pool.share(block)
        seq.blocks.extend(hits)
        seq.blocks.extend([pool.take() for _ in range(missing)])
        seq.num_computed = len(hits) * self._block_size
        seq.slot = self._slots.pop()
        self._count_entry(seq)
        self._claim(seq, len(hits))
        self.tiers.begin(seq.fetch, seq.blocks)
        insort(self._running, seq, key=_by_arrival)
        return True

    def _count_entry(self, seq: Sequence) -> None:
        if seq.first_schedule >= 0:
            return
        seq.first_schedule = self._clock()
        seq.cached_tokens = seq.num_computed
        if self._prefix is not None and seq.reads_cache:
            self._query_tokens += seq.prompt_len
            self._hit_tokens += seq.num_computed

    def _claim(self, seq: Sequence, published: int) -> None:
        seq.awaits = b""
        seq.num_published = published
        seq.publish_at = sys.maxsize if self._prefix is None else (published + 1) * self._block_size
        for digest in seq.digests[published:]:
            self._claimed.setdefault(digest, seq)

    def _take_in_loaded(self) -> None:
        self.tiers.turn()
        for seq in self._running:
            if seq.fetch.pieces and not seq.busy:
                self._pass_loaded(seq)

    def _pass_loaded(self, seq: Sequence) -> None:
        before = seq.num_computed
        seq.num_computed = self.tiers.advance(seq.fetch, before, len(seq.tokens))
        if seq.num_computed == before:
            return
        if seq.first_output:
            seq.cached_tokens = min(
                seq.cached_tokens + seq.num_computed - before, seq.prompt_len - 1
            )
            seq.tier_tokens = self.tiers.tokens(seq.fetch)
        if seq.num_computed >= seq.publish_at:
            self._publish(seq)

    # Results --------------------------------------------------------------------------------------

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Take in what a plan gave: advance its sequences, publish full blocks, end what is
        complete.
        """
        work = self._in_flight.pop(plan.step)
        counts, tokens = result.counts, result.tokens
        ended = False
        at = 0
        for index, (seq, length) in enumerate(work):
            seq.busy = False
            seq.num_computed += length
            if seq.fetch.pieces:
                self._pass_loaded(seq)
            if seq.num_computed >= seq.publish_at:
                self._publish(seq)
            if index in result.prompt_logprobs:
                seq.prompt_rows.extend(result.prompt_logprobs[index])
            end = at + counts[index]
            if seq.cancelled:
                self._finish(seq, FinishReason.CANCELLED)
                ended = True
            elif end > at:
                ended |= self._advance(seq, tokens[at:end], result.logprobs.get(index))
            at = end
        if ended:
            self._drop_vacated()

    def fail(self, plan: StepPlan, message: str) -> None:
        """End the requests of a plan that could not be computed; the others go on."""
        for seq, _ in self._in_flight.pop(plan.step):
            seq.busy = False
            if seq.cancelled:
                self._finish(seq, FinishReason.CANCELLED)
            else:
                self._finish(seq, FinishReason.ERROR, error=message)
        self._drop_vacated()

    def _advance(self, seq: Sequence, sampled: array[int], rows: list[LogprobRow] | None) -> bool:
        finish, count = FinishReason.NONE, 0
        stop_token = -1
        for token in sampled:
            seq.tokens.append(token)
            count += 1
            known = len(seq.tokens)
            if token in seq.stops and known > seq.min_length:
                finish, stop_token = FinishReason.STOP, token
                break
            if known >= seq.length_limit:
                finish = FinishReason.LENGTH
                break
        self._outbox.tokens(seq, sampled[:count], finish, stop_token, rows)
        if finish:
            self._remove(seq)
        return bool(finish)

    def _publish(self, seq: Sequence) -> None:
        if self._prefix is None:
            return
        full = seq.num_computed // self._block_size
        if len(seq.digests) < full:
            seq.digests.extend(
                self._prefix.digests(seq.tokens, seq.digests, seq.request.cache_salt)
            )
        for at in range(seq.num_published, full):
            digest = seq.digests[at]
            self._pool.publish(seq.blocks[at], digest)
            if self._claimed.get(digest) is seq:
                del self._claimed[digest]
        first, prompt_blocks = seq.num_published, seq.prompt_len // self._block_size
        self.tiers.published(seq.digests, first, seq.blocks[first:full], prompt_blocks)
        seq.num_published = full
        seq.publish_at = (full + 1) * self._block_size

    # Leaving --------------------------------------------------------------------------------------

    def _preempt(self, seq: Sequence) -> None:
        """Back to waiting with all its tokens; their KV is computed again, or found while it is
        cached.
        """
        self._preemptions += 1
        if seq.reads_cache:
            self.tiers.park(seq.digests, seq.blocks[: seq.num_published])
        self._vacate(seq)
        seq.num_computed = 0
        seq.prompt_rows.clear()
        insort(self._waiting, seq, key=_by_arrival)

    def _finish(self, seq: Sequence, finish: FinishReason, error: str = "") -> None:
        self._outbox.end(seq, finish, error)
        self._remove(seq)

    def _remove(self, seq: Sequence) -> None:
        del self._sequences[seq.request.id]
        if seq.slot < 0:
            self._waiting.remove(seq)
            self.tiers.leave(seq.fetch)
        else:
            self._vacate(seq)

    def _vacate(self, seq: Sequence) -> None:
        for digest in seq.digests[seq.num_published :]:
            if self._claimed.get(digest) is seq:
                del self._claimed[digest]
        self.tiers.ended(seq.digests, seq.num_published)
        self.tiers.leave(seq.fetch)
        seq.fetch = NOTHING
        self._pool.release(seq.blocks)
        del seq.blocks[:]
        self._slots.append(seq.slot)
        seq.slot = NO_SLOT
        seq.registered = False

    def _drop_vacated(self) -> None:
        self._running = [seq for seq in self._running if seq.slot >= 0]

    # Reports --------------------------------------------------------------------------------------

    def has_requests(self) -> bool:
        return bool(self._sequences)

    def has_outputs(self) -> bool:
        return self._outbox.filled

    def take_outputs(self) -> StepOutputs:
        """Rows since the last call, in the order in which they came about."""
        return self._outbox.take()

    def stats(self) -> EngineStats:
        pool = self._pool
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            blocks_used=pool.num_blocks - pool.available,
            blocks_total=pool.num_blocks,
            preemptions=self._preemptions,
            prefix_query_tokens=self._query_tokens,
            prefix_hit_tokens=self._hit_tokens,
        )

    def check(self) -> None:
        """Audit blocks, slots and claims; PoolCorruptError names a fault. O(blocks): not for every
        step.
        """
        self._pool.check([*(seq.blocks for seq in self._running), *self.tiers.tables()])
        slots = sorted([*self._slots, *(seq.slot for seq in self._running)])
        if slots != list(range(self.limits.max_num_seqs)):
            raise PoolCorruptError(f"slots are lost or taken twice: {slots}")
        if any(seq.slot < 0 for seq in self._claimed.values()):
            raise PoolCorruptError("a sequence that is not running claims to compute a prefix")

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


def _by_arrival(seq: Sequence) -> int:
    return seq.order
