"""State of one sequence in the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core import LogprobRow, Pooling, Registration, Request, TierTokens
from penstock.kv import BlockTable
from penstock.kv.tiers import PrefixLoad

NO_SLOT = -1
FIRST_RETRY, LAST_RETRY = 0.005, 0.05
"""Delays in seconds before a row with a late mask is retried, doubled from the first to the last.
Each retry delays the other rows of its step by up to the backend's wait for a mask.
"""


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence's counters. There are no phases: prefill, decode and recomputation differ only in
    these numbers.

    Invariant: computed <= scheduled <= len(tokens) + sampling, and computed == scheduled while no
    plan in flight holds the sequence.
    """

    request: Request
    order: tuple[int, int]
    """Sort key: priority (0 if priorities are off), then arrival number."""
    prompt_len: int
    length_limit: int
    """Number of known tokens at which the sequence ends with LENGTH."""
    min_length: int
    """Number of known tokens below which stop tokens do not end the sequence."""
    stops: frozenset[int]
    reads_cache: bool
    prompt_logprobs: int
    """Alternatives for each prompt token; -1 if not requested or already delivered."""
    tokens: array[int]
    """Known tokens: prompt, then output."""
    table: BlockTable
    pooling: Pooling = Pooling.NONE
    """If not NONE, the sequence ends with a vector instead of its first token."""
    computed: int = 0
    """Tokens whose KV is in the blocks, according to applied results."""
    scheduled: int = 0
    """`computed`, plus the tokens in plans in flight."""
    sampling: int = 0
    """Plans in flight that sample a token, or that end a pooled sequence."""
    in_flight: int = 0
    """Plans in flight that hold the sequence."""
    drafts: tuple[int, ...] = ()
    """Draft tokens in the plan in flight."""
    retries: int = 0
    """Consecutive steps in which no token was sampled because the mask was late."""
    retry_at: float = 0.0
    """Clock time at which that row is retried."""
    slot: int = NO_SLOT
    digests: list[bytes] = field(default_factory=list)
    """Digests of the full blocks of `tokens`, computed as needed."""
    published: int = 0
    """Leading blocks whose digests are published."""
    publish_at: int = 0
    """Value of `computed` at which the next block is full."""
    awaits: bytes = b""
    """Digest of a block that a running sequence computes and this one will share."""
    registered: bool = False
    ended: bool = False
    """Answered. Slot and blocks are released when no plan in flight holds the sequence."""
    first_schedule: float = -1.0
    cached_tokens: int = 0
    tier_tokens: TierTokens | None = None
    """The part of `cached_tokens` that came from tiers."""
    first_output: bool = True
    load: PrefixLoad = field(default_factory=PrefixLoad)
    """Load from the tiers."""
    prompt_rows: list[LogprobRow] = field(default_factory=list)

    def remaining(self) -> int:
        """Tokens that the next plan can compute: 1 in decode, more in prefill."""
        return len(self.tokens) + self.sampling - self.scheduled

    def limit_in_flight(self) -> bool:
        """Whether the plans in flight sample the last token that its length limit allows."""
        return len(self.tokens) + self.sampling >= self.length_limit

    def rewind(self, computed: int) -> None:
        """Restart from `computed` tokens. Nothing may be in flight."""
        self.computed = self.scheduled = computed
        self.sampling = self.retries = 0

    def not_drawn(self, now: float) -> int:
        """Unschedule the row whose mask was late, and its drafts; returns the number of tokens."""
        back = 1 + len(self.drafts)
        self.drafts = ()
        self.scheduled -= back
        self.retry_at = now + min(FIRST_RETRY * 2.0**self.retries, LAST_RETRY)
        self.retries += 1
        return back

    def registration(self, grammar: int) -> Registration:
        """The registration for a plan. `grammar` is the grammar's number in that plan."""
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
