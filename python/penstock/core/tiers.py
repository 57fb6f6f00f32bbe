"""Numbers of tokens loaded from KV tiers, for usage data; and the commands for administering the KV
cache.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

from penstock.core.errors import InvalidValueError


class TierTokens(NamedTuple):
    """Numbers of prompt tokens of one request that were loaded from tiers, by kind of tier."""

    ram: int = 0
    disk: int = 0
    remote: int = 0


class TierKind(IntEnum):
    RAM = 1
    DISK = 2
    REMOTE = 3


class TierKinds(IntFlag):
    """Kinds of tiers that are configured."""

    NONE = 0
    RAM = 1
    DISK = 2
    REMOTE = 4


class KvAction(IntEnum):
    CLEAR_ALL = 1
    """Clear the pool and all tiers. Blocks in use stay with their sequences."""
    CLEAR_SALT = 2
    """Clear all KV of requests with `cache_salt`."""
    CLEAR_PREFIX = 3
    """Clear the blocks of one prefix and all blocks that extend it."""
    PIN = 4
    """Exempt the blocks of a prefix from eviction from the RAM tier, including blocks that are
    computed later.
    """
    UNPIN = 5
    REPORT = 6
    """Report contents and hit rates of the cache."""


_OF_A_PREFIX = (KvAction.CLEAR_PREFIX, KvAction.PIN, KvAction.UNPIN)


@dataclass(frozen=True, slots=True)
class KvCommand:
    """An operator's command to the cache, answered by one `KvReply`.

    `tokens` is a prompt prefix, used up to its last whole block; only actions on a prefix take it.
    Raises InvalidValueError for fields that do not fit the action. Otherwise a command to clear one
    prefix, sent without the prefix, would clear everything.
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
    """Not possible at present, for example because too much is pinned."""
    FAILED = 2
    """At least one tier failed."""


@dataclass(frozen=True, slots=True)
class KvReply:
    """Result of a `KvCommand`. `text` is a JSON object if DONE, else the reason."""

    id: int
    outcome: KvOutcome
    text: str = "{}"
