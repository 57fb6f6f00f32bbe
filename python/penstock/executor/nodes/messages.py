"""What the engine and the nodes say to each other: JSON, one object with a `type` for each message.

```text
node   -> engine   Hello
engine -> node     Refused, and the line ends; else, when all nodes are there:
engine -> node     Make      node -> engine   Made
engine -> node     Start     node -> engine   Started
rank   -> engine   Called, on a line of its own; plans and answers follow there
engine -> node     Opened
engine -> node     End       node -> engine   Ended
```

`Gone` and `Unable` come from a node at any time. Nothing here is secret: keys are derived on both
sides from the nodes' own and the number of the session.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_args

from penstock.core import PenstockError

PROTOCOL_CARD = {"the protocol": "1"}
"""Of these messages: another one is refused by its number."""
LIMIT = 8 << 20
"""Bytes of a message at most: the tasks of a node's ranks."""


class MessageError(PenstockError):
    """Bytes that are no message, or not the one that is due."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node is there."""

    node: int
    address: str
    """Its own, as the engine reaches it."""
    called: str
    """The engine's, as this node reaches it."""
    card: dict[str, str]
    """What must be the same on all nodes, by name."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    final: bool
    """Whether it is of no use to call again."""


@dataclass(frozen=True, slots=True)
class Make:
    """The parts that join ranks (`comm.LocalParts`), as far as they are on this node."""

    session: str
    """A new one for each engine, 32 hexadecimal digits."""
    wanted: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Made:
    made: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Job:
    """One rank to start; its model and settings are those of its node."""

    rank: int
    reads: bool
    num_blocks: int
    shard: str
    wiring: dict[str, Any]
    capacity: int
    """Bytes of an answer at most."""
    limit: int
    """Bytes of a plan at most."""


@dataclass(frozen=True, slots=True)
class Start:
    jobs: list[dict[str, Any]]
    """`Job`s."""


@dataclass(frozen=True, slots=True)
class Started:
    pids: list[int]


@dataclass(frozen=True, slots=True)
class Called:
    """A rank is there."""

    session: str
    rank: int


@dataclass(frozen=True, slots=True)
class Opened:
    """Ranks hold open what was made for them."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank ended unasked."""

    rank: int
    how: str
    killed: bool


@dataclass(frozen=True, slots=True)
class Unable:
    """The node cannot do what it was told."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """Of all ranks, killed when they stay for more than `notice` seconds."""

    notice: float


@dataclass(frozen=True, slots=True)
class Ended:
    """No rank is left."""


Message = (
    Hello | Refused | Make | Made | Start | Started | Called | Opened | Gone | Unable | End | Ended
)
M = TypeVar("M", bound=Message)
TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode()


def decode(data: bytes) -> Message:
    try:
        fields = json.loads(data)
        kind = TYPES[fields.pop("type")]
        return kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MessageError(f"a message that makes no sense: {data[:200]!r}") from error


def expect(message: Message, kind: type[M]) -> M:
    if not isinstance(message, kind):
        raise MessageError(f"{type(message).__name__} came where {kind.__name__} was due")
    return message


def session_key(key: bytes, session: str) -> bytes:
    """The key of the streams between stages, for one engine."""
    return hashlib.blake2b(session.encode(), key=key, digest_size=32).digest()
