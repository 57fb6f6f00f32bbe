"""What the tiers behind the KV pool did, as it is told to the front door."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

from penstock.core.errors import InvalidValueError


class TierTokens(NamedTuple):
    """Prompt tokens of one request that came from behind the pool, by the kind of their tier."""

    ram: int = 0
    disk: int = 0
    remote: int = 0


class TierKind(IntEnum):
    RAM = 1
    DISK = 2
    REMOTE = 3


class TierKinds(IntFlag):
    """Which kinds of tiers stand behind the pool."""

    NONE = 0
    RAM = 1
    DISK = 2
    REMOTE = 4


class TierState(IntEnum):
    SERVING = 0
    SKIPPED = 1
    """It failed or stalled, and is left alone for a while."""
    TRYING = 2
    """One attempt is under way that decides between the other two."""


DURATION_BOUNDS = (
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
)
"""Upper bounds of the buckets of `Durations`, in seconds, inclusive."""


def _no_counts() -> array[int]:
    return array("Q", bytes(8 * (len(DURATION_BOUNDS) + 1)))


@dataclass(slots=True)
class Durations:
    """How long transfers took: a histogram over `DURATION_BOUNDS`. The last count is above all of
    them.
    """

    seconds: float = 0.0
    counts: array[int] = field(default_factory=_no_counts)

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self.counts[bisect_left(DURATION_BOUNDS, seconds)] += 1


@dataclass(slots=True)
class TierStats:
    """One tier, over all ranks. All but `state`, `used_bytes` and `capacity_bytes` only grow."""

    name: str
    """`ram`, `disk:/var/kv`."""
    kind: TierKind
    state: TierState = TierState.SERVING
    used_bytes: int = 0
    capacity_bytes: int = 0
    """0 is no bound, or none that is known."""
    hits: int = 0
    """Chunks that it was asked for and had."""
    misses: int = 0
    hit_tokens: int = 0
    """Prompt tokens that came from it."""
    loaded_bytes: int = 0
    stored_bytes: int = 0
    errors: int = 0
    evicted_chunks: int = 0
    quarantined_chunks: int = 0
    """Found to be other than what was written, and put aside."""
    dropped_stores: int = 0
    """Not written, because the tier was behind or full, or its daily budget was spent."""
    load: Durations = field(default_factory=Durations)
    store: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class Decisions:
    """What was done about prefixes that a tier had, by the number of requests."""

    load: int = 0
    compute: int = 0
    both: int = 0
    """Loaded from one end while the other was computed."""


@dataclass(slots=True)
class TierReport:
    """All tiers since the engine's start. Its frame on the wire is TIERS."""

    tiers: list[TierStats] = field(default_factory=list)
    """In the order in which they are asked."""
    lookup_tokens: int = 0
    """Prompt tokens that the pool did not have and the tiers were asked for."""
    decisions: Decisions = field(default_factory=Decisions)
    pinned_blocks: int = 0
    """Blocks of the pool and of the RAM tier that eviction passes over."""
    miss_curve: list[tuple[int, float]] = field(default_factory=list)
    """Bytes of cache, and the part of the prompt tokens that would be computed with so much.
    Ascending.
    """


class KvAction(IntEnum):
    CLEAR_ALL = 1
    """Forget everything, in the pool and in all tiers."""
    CLEAR_SALT = 2
    """Forget what requests with `cache_salt` left."""
    CLEAR_PREFIX = 3
    """Forget the blocks of one prefix, and with them whatever continues it."""
    PIN = 4
    """Keep the blocks of a prefix, now or once they are computed, whatever else has to go."""
    UNPIN = 5
    REPORT = 6
    """What the cache holds and how well it does."""


_OF_A_PREFIX = (KvAction.CLEAR_PREFIX, KvAction.PIN, KvAction.UNPIN)


@dataclass(frozen=True, slots=True)
class KvCommand:
    """An operator's wish about the cache, answered by one `KvReply`.

    `tokens` are the beginning of prompts, as far as it fills whole blocks; only the actions of a
    prefix have any. Raises InvalidValueError for fields that do not go with the action: a clearing
    that lost its prefix must not become one of everything.
    """

    id: int
    action: KvAction
    tokens: array[int] = field(default_factory=lambda: array("i"))
    cache_salt: bytes = b""

    def __post_init__(self) -> None:
        if (self.action in _OF_A_PREFIX) != bool(self.tokens):
            expected = "none with this action" if self.tokens else "at least one token"
            raise InvalidValueError("tokens", f"{len(self.tokens)} tokens", expected)
        if self.action is KvAction.CLEAR_SALT and not self.cache_salt:
            raise InvalidValueError("cache_salt", "nothing", "a salt")
        if self.action in (KvAction.CLEAR_ALL, KvAction.REPORT) and self.cache_salt:
            raise InvalidValueError(
                "cache_salt", f"{len(self.cache_salt)} bytes", "none with this action"
            )


class KvOutcome(IntEnum):
    DONE = 0
    REFUSED = 1
    """Not possible as things stand: too much is pinned, say."""
    FAILED = 2
    """A tier did not do its part."""


@dataclass(frozen=True, slots=True)
class KvReply:
    """The end of a `KvCommand`. `text` is a JSON object when it was done, else why not."""

    id: int
    outcome: KvOutcome
    text: str = "{}"
