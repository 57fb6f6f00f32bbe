"""Predicts throughput and latency of a closed loop: clients that each send their next request when
the last one has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core import PenstockError
from penstock_ops.plan.memory import Memory
from penstock_ops.plan.search import Speed
from penstock_ops.plan.speed import Steps, closed_loop_tpot


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of each request."""

    isl: int
    osl: int

    @property
    def total(self) -> int:
        return self.isl + self.osl


@dataclass(frozen=True, slots=True)
class Deployment:
    """Equal replicas with a load balancer in front, which keeps their numbers of requests equal."""

    memory: Memory
    steps: Steps
    sequences: int
    """Maximum number of sequences that a replica computes together."""
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Predicted:
    """A load of a sweep, at one end of the error band or in its middle."""

    clients: int
    served: float
    """Average number of requests computed at once; the other requests wait."""
    tpot: float
    """Seconds between two tokens of a request."""
    queued: float
    """Average seconds that a request waits for other requests to end."""
    prompt: float
    """Seconds of a step with only the whole prompt: a lower bound for the prompt's computation."""
    lengths: Lengths

    @property
    def throughput(self) -> float:
        """Output tokens per second of all replicas together."""
        return self.served / self.tpot

    @property
    def ttft(self) -> float:
        """Lower bound for the time to first token in seconds."""
        return self.queued + self.prompt


def predict(
    deployment: Deployment, clients: int, lengths: Lengths, speed: Speed, end: float = 1.0
) -> Predicted:
    """Predict the load of `clients` clients. Step times are multiplied by `end`, such as an end of
    the error band. Raises PenstockError if one request does not fit in a replica's KV memory.
    """
    busy = min(deployment.replicas, clients)
    held = deployment.memory.concurrency(lengths.total)
    if not held:
        why = deployment.memory.lacking(lengths.total)
        raise PenstockError(f"one request of {lengths.total:,} tokens does not fit: {why}")
    each = clients / busy
    served = min(each, held, deployment.sequences)
    factor = end * speed.factor
    tpot = factor * closed_loop_tpot(deployment.steps, served, lengths.isl, lengths.osl)
    return Predicted(
        clients,
        busy * served,
        tpot,
        # Little's law: the number of waiting requests, divided by the rate at which requests end.
        (each - served) * tpot * lengths.osl / served,
        factor * deployment.steps.seconds(0, 0, lengths.isl) + (speed.waiting or 0.0),
        lengths,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A load of a sweep with the error band of its step times: `fast` is its lower end."""

    fast: Predicted
    mid: Predicted
    slow: Predicted


def sweep(
    deployment: Deployment, loads: Sequence[int], lengths: Lengths, speed: Speed
) -> list[Row]:
    ends = (speed.band.low, 1.0, speed.band.high)
    return [
        Row(*(predict(deployment, clients, lengths, speed, end) for end in ends))
        for clients in loads
    ]
