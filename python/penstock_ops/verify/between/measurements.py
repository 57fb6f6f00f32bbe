"""What the agents measured, as plain data for `judgement`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from penstock_ops.verify.between.probes import Transfer
from penstock_ops.verify.between.rounds import Pair


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A node's wall clock minus the coordinator's, in seconds."""

    seconds: float
    uncertainty: float
    """Half of the fastest round trip."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """All-reduces between all nodes."""

    bytes: int
    microseconds: float
    """Median over the repeats of the slowest rank."""
    slow_nodes: tuple[int, ...] = ()
    """Nodes that halving found, if the time misses the bound."""
    is_between: bool = False
    """Whether a group is slow and neither half of it is."""


class Memory(StrEnum):
    """Where an RDMA adapter reads from and writes to."""

    HOST = "host memory"
    GPU = "GPU memory"


@dataclass(slots=True)
class Rail:
    """The RDMA adapters of one name on all nodes."""

    device: str
    layer: str
    """InfiniBand or Ethernet."""
    port_gbit_per_s: float
    """Of the slowest port."""
    gbit_per_s: dict[Memory, dict[Pair, float]] = field(default_factory=dict)
    read_us: dict[Pair, float] = field(default_factory=dict)
    failures: dict[tuple[str, str, Pair], str] = field(default_factory=dict)
    """Why a pair was not measured, by check and memory."""
    gpu_reason: str = ""
    """Why GPU memory was not measured."""


@dataclass(slots=True)
class Measurements:
    """Values by node or by pair (from, to), as positions in `nodes`."""

    nodes: tuple[str, ...]
    lost: dict[int, str] = field(default_factory=dict)
    """Why a node does not answer."""
    reasons: dict[tuple[str, int], str] = field(default_factory=dict)
    """Why an operation, by name, failed on a node that answers."""
    unreachable: dict[Pair, str] = field(default_factory=dict)
    """Errors of connections to a peer's agent, which has a port chosen at run time."""
    closed: dict[Pair, str] = field(default_factory=dict)
    """Errors of connections to the fixed port of the first node."""
    checked_ports: set[Pair] = field(default_factory=set)
    fixed_port: int = 0
    round_trip_us: dict[Pair, float] = field(default_factory=dict)
    idle_resent: dict[Pair, int] = field(default_factory=dict)
    """Packets that were sent again while only small messages were on their way."""
    transfers: dict[Pair, Transfer] = field(default_factory=dict)
    largest_segment: dict[Pair, int] = field(default_factory=dict)
    """Bytes, of pairs whose transfer stopped."""
    line_rate: float = 0.0
    """GB/s of the slowest node's network card; 0 if unknown, as for virtual cards."""
    clocks: dict[int, ClockOffset] = field(default_factory=dict)
    names: dict[Pair, tuple[float, str]] = field(default_factory=dict)
    """Seconds to resolve the peer's name, and the error."""
    reduction: Reduction | None = None
    rails: list[Rail] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Checks that do not apply, and why."""
