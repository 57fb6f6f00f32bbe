"""State of one sequence (a prompt and its sampled tokens) in the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core import LogprobRow, Pooling, Registration, Request, TierTokens
from penstock.kv import BlockTable
from penstock.kv.tiers import PrefixLoad

NO_SLOT = -1
FIRST_RETRY, LAST_RETRY = 0.005, 0.05
"""First and longest delay in seconds before sampling is retried for a sequence whose grammar mask
was late. The delay doubles with each retry. A retry can delay the other sequences of its step,
because the backend waits for the mask for a limited time.
"""


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence's counters. Prefill, decode and recomputation are not separate phases; they differ
    only in these counters.

    Invariant: computed <= scheduled <= len(tokens) + sampling, and computed == scheduled while no
    plan in flight holds the sequence.
    """

    request: Request
    order: tuple[int, int]
    """Scheduling order, lowest first: priority (0 if priorities are off), then arrival number."""
    prompt_len: int
    length_limit: int
    """Number of `tokens`, prompt included, at which the sequence ends with LENGTH."""
    min_length: int
    """Minimum number of `tokens`, prompt included: only beyond it do stop tokens end the
    sequence.
    """
    stops: frozenset[int]
    reads_cache: bool
    prompt_logprobs: int
    """Number of alternatives to report for each prompt token; -1 if the prompt's log probabilities
    were not requested or are already delivered.
    """
    tokens: array[int]
    """Known tokens: prompt, then output."""
    table: BlockTable
    pooling: Pooling = Pooling.NONE
    """If not NONE, the sequence ends with a vector instead of its first token."""
    computed: int = 0
    """Number of leading tokens whose KV is in the blocks, according to applied results."""
    scheduled: int = 0
    """`computed` plus the number of tokens in plans in flight."""
    sampling: int = 0
    """Number of plans in flight that sample a token or produce the vector of a pooled sequence."""
    in_flight: int = 0
    """Number of plans in flight that contain the sequence."""
    retries: int = 0
    """Number of consecutive steps without a sampled token because the grammar mask was late."""
    retry_at: float = 0.0
    """Clock time of the next sampling retry after a late grammar mask."""
    slot: int = NO_SLOT
    digests: list[bytes] = field(default_factory=list)
    """Digests (prefix cache keys) of the full blocks of `tokens`, computed on demand."""
    published: int = 0
    """Number of leading blocks whose digests are published."""
    checkpoints: set[int] = field(default_factory=set)
    """Positions, in tokens, at which the sequence is to make state checkpoints that stay."""
    publish_at: int = 0
    """Value of `computed` at which the next block is full."""
    awaits: bytes = b""
    """Digest of the block that this waiting sequence will share once a running sequence has
    computed it.
    """
    admission: int = 0
    """Number of the sequence's last admission, counted over all sequences."""
    expected: bool = False
    """Whether this waiting sequence was compared with the running ones."""
    registered: bool = False
    ended: bool = False
    """Whether the last output row was emitted. Slot and blocks are released when no plan in flight
    contains the sequence.
    """
    first_schedule: float = -1.0
    cached_tokens: int = 0
    tier_tokens: TierTokens | None = None
    """How many of `cached_tokens` came from which tier; None if none did."""
    first_output: bool = True
    load: PrefixLoad = field(default_factory=PrefixLoad)
    """State of the load of this sequence's prefix from the tiers."""
    prompt_rows: list[LogprobRow] = field(default_factory=list)

    def remaining(self) -> int:
        """Number of tokens left to schedule: 1 in decode, usually more in prefill."""
        return len(self.tokens) + self.sampling - self.scheduled

    def limit_in_flight(self) -> bool:
        """Whether the plans in flight sample the last token that its length limit allows."""
        return len(self.tokens) + self.sampling >= self.length_limit

    def rewind(self, computed: int) -> None:
        """Continue after the first `computed` tokens. The sequence must not be in flight."""
        self.computed = self.scheduled = computed
        self.sampling = self.retries = 0

    def not_drawn(self, drafts: int, now: float) -> int:
        """Unschedule the last token and its `drafts`, because the grammar mask was late and no
        token was sampled. Returns the number of unscheduled tokens. `now` is the clock time.
        """
        back = 1 + drafts
        self.scheduled -= back
        self.retry_at = now + min(FIRST_RETRY * 2.0**self.retries, LAST_RETRY)
        self.retries += 1
        return back

    def registration(self, grammar: int) -> Registration:
        """The sequence's registration for a plan. `grammar` is the number of its grammar in that
        plan, from 1; 0 means no grammar.
        """
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
