"""Messages between engine and node agents: JSON objects with a `type`.

```text
node   -> engine   Hello
engine -> node     Refused, and the stream ends; else, when all nodes have joined:
engine -> node     Make      node -> engine   Made
engine -> node     Start     node -> engine   Started
rank   -> engine   Called, on its own stream; plans and answers follow there
engine -> node     Opened
engine -> node     End       node -> engine   Ended
```

A node may send `RankLoss` and `Unable` at any time. No message contains a secret: both sides derive
the keys from the cluster's key and the session.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_args

from penstock.core import PenstockError

PROTOCOL = {"the protocol": "2"}
"""Version of this protocol, part of the configuration fingerprint."""
LIMIT = 8 << 20
"""Maximum message size in bytes. The largest message carries the tasks of a node's ranks."""


class MessageError(PenstockError):
    """Malformed bytes, or an unexpected message."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Request of a node to join."""

    node: int
    address: str
    """The node's address, as seen by the engine."""
    called: str
    """The engine's address, as seen by this node."""
    fingerprint: dict[str, str]
    """Settings that all nodes must share, by name."""


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    final: bool
    """Whether the refusal is permanent, so that a retry is useless."""


@dataclass(frozen=True, slots=True)
class Make:
    """Create communication resources (shared memory, ports) on this node (`LocalResources`)."""

    session: str
    """Session id: 32 hexadecimal digits, new for each engine."""
    requests: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Made:
    made: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Job:
    """One rank to start, with its node's model path and settings."""

    rank: int
    reads: bool
    shard: str
    wiring: dict[str, Any]
    capacity: int
    """Maximum size of an answer in bytes."""
    limit: int
    """Maximum size of a plan in bytes."""


@dataclass(frozen=True, slots=True)
class Start:
    jobs: list[dict[str, Any]]
    """One `Job` for each rank of this node."""


@dataclass(frozen=True, slots=True)
class Started:
    pids: list[int]


@dataclass(frozen=True, slots=True)
class Called:
    """A rank has started."""

    session: str
    rank: int


@dataclass(frozen=True, slots=True)
class Opened:
    """All ranks have opened their resources, so the node may close its own handles."""


@dataclass(frozen=True, slots=True)
class RankLoss:
    """A rank ended without a request to end."""

    rank: int
    reason: str
    killed: bool


@dataclass(frozen=True, slots=True)
class Unable:
    """The node cannot carry out a message."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """End all ranks; kill them after `notice` seconds."""

    notice: float


@dataclass(frozen=True, slots=True)
class Ended:
    """All ranks have ended."""


Message = (
    Hello
    | Refused
    | Make
    | Made
    | Start
    | Started
    | Called
    | Opened
    | RankLoss
    | Unable
    | End
    | Ended
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
        raise MessageError(f"a malformed message: {data[:200]!r}") from error


def expect(message: Message, kind: type[M]) -> M:
    if not isinstance(message, kind):
        raise MessageError(f"{type(message).__name__} came where {kind.__name__} was due")
    return message


def session_key(key: bytes, session: str) -> bytes:
    """Key of the streams between ranks, unique to one engine."""
    return hashlib.blake2b(session.encode(), key=key, digest_size=32).digest()
