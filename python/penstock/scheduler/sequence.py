"""A request inside the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from penstock.core import LogprobRow, Request, SlotParams, TierTokens
from penstock.kv_tiers import NOTHING, Fetch

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """Counters, not phases: a sequence knows `len(tokens)` tokens (prompt and output) and has the
    KV of the first `num_computed` of them. Prefill, decode and recomputation differ in these
    numbers only.
    """

    request: Request
    order: int
    """Arrival number: the priority of the sequence among all others."""
    prompt_len: int
    length_limit: int
    """Known tokens at which it ends with LENGTH."""
    min_length: int
    """Known tokens below which a stop token is an ordinary token."""
    stops: frozenset[int]
    reads_cache: bool
    prompt_logprobs: int
    """-1 once the rows are delivered or when nobody asked."""
    tokens: array[int]
    num_computed: int = 0
    slot: int = NO_SLOT
    blocks: array[int] = field(default_factory=lambda: array("i"))
    digests: list[bytes] = field(default_factory=list)
    """Names of full blocks of `tokens`, as far as they were asked for."""
    num_published: int = 0
    """Leading blocks whose name the pool knows."""
    publish_at: int = 0
    """`num_computed` at which the next block is full."""
    awaits: bytes = b""
    """Name of a block that a running sequence is computing and this one can share."""
    registered: bool = False
    busy: bool = False
    cancelled: bool = False
    first_schedule: float = -1.0
    cached_tokens: int = 0
    tier_tokens: TierTokens | None = None
    """Of those, from behind the pool."""
    first_output: bool = True
    fetch: Fetch = NOTHING
    """What it gets from the tiers behind the pool."""
    prompt_rows: list[LogprobRow] = field(default_factory=list)

    def slot_params(self) -> SlotParams:
        params = self.request.params
        return SlotParams(
            self.slot,
            params.temperature,
            params.top_k,
            params.top_p,
            params.seed,
            params.choice,
            params.logprobs,
            self.prompt_logprobs,
        )
