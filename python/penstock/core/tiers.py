"""KV tiers in usage, and commands about the KV cache."""

from __future__ import annotations

from array import array
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
