"""A sequence inside the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core import LogprobRow, Pooling, Registration, Request, TierTokens
from penstock.kv import BlockTable
from penstock.kv.tiers import PrefixLoad

NO_SLOT = -1
FIRST_RETRY, LAST_RETRY = 0.005, 0.05
"""Seconds until a row whose mask was late is computed again: doubled each time. Each time the other
rows of the step wait for it as long as the backend waits for a mask.
"""


@dataclass(slots=True, eq=False)
class Sequence:
    """Counters, not phases: prefill, decode and recomputation differ in these numbers only.

    computed <= scheduled <= len(tokens) + sampling, and equal when no plan in flight holds the
    sequence.
    """

    request: Request
    order: tuple[int, int]
    """Priority, or 0 without priorities, and arrival number: its place among all others."""
    prompt_len: int
    length_limit: int
    """Known tokens at which it ends with LENGTH."""
    min_length: int
    """Known tokens below which a stop token is an ordinary token."""
    stops: frozenset[int]
    reads_cache: bool
    prompt_logprobs: int
    """-1 once the rows are delivered, or when they are not wanted."""
    tokens: array[int]
    """Known tokens: prompt and output."""
    table: BlockTable
    pooling: Pooling = Pooling.NONE
    """Unless NONE, it ends with a vector in place of its first token."""
    computed: int = 0
    """Tokens whose KV is in the blocks, by applied results."""
    scheduled: int = 0
    """Those and the ones in plans in flight."""
    sampling: int = 0
    """Plans in flight that sample a token, or end a pooled sequence."""
    in_flight: int = 0
    """Plans in flight that hold the sequence."""
    drafts: tuple[int, ...] = ()
    """In the plan in flight."""
    retries: int = 0
    """Times in a row that its token was not drawn because its mask was late."""
    retry_at: float = 0.0
    """When that row is computed again."""
    slot: int = NO_SLOT
    digests: list[bytes] = field(default_factory=list)
    """Names of full blocks of `tokens`, as far as they were needed."""
    published: int = 0
    """Leading blocks whose digests the prefix cache has."""
    publish_at: int = 0
    """`computed` at which the next block is full."""
    awaits: bytes = b""
    """Digest of a block that a running sequence is computing and this one can share."""
    registered: bool = False
    ended: bool = False
    """Answered; its slot and blocks are released when no plan in flight holds it."""
    first_schedule: float = -1.0
    cached_tokens: int = 0
    tier_tokens: TierTokens | None = None
    """Those of `cached_tokens` that tiers had."""
    first_output: bool = True
    load: PrefixLoad = field(default_factory=PrefixLoad)
    """Its load from the tiers."""
    prompt_rows: list[LogprobRow] = field(default_factory=list)

    def remaining(self) -> int:
        """Tokens that the next plan can compute: 1 when decoding, more in a prompt."""
        return len(self.tokens) + self.sampling - self.scheduled

    def limit_in_flight(self) -> bool:
        """Whether the plans in flight sample the last token of its length."""
        return len(self.tokens) + self.sampling >= self.length_limit

    def rewind(self, computed: int) -> None:
        """Continue from `computed` tokens, with nothing in flight."""
        self.computed = self.scheduled = computed
        self.sampling = self.retries = 0

    def not_drawn(self, now: float) -> int:
        """Take back the row whose mask is late, and its drafts; how many tokens."""
        back = 1 + len(self.drafts)
        self.drafts = ()
        self.scheduled -= back
        self.retry_at = now + min(FIRST_RETRY * 2.0**self.retries, LAST_RETRY)
        self.retries += 1
        return back

    def registration(self, grammar: int) -> Registration:
        """What a plan says of it when it takes a slot; `grammar` is its number in that plan."""
        request = self.request
        return Registration(
            self.slot,
            request.sampling,
            self.prompt_logprobs,
            grammar,
            request.adapter,
            self.tokens[:] if request.needs_history or grammar else array("i"),
            self.prompt_len,
            self.pooling,
        )
