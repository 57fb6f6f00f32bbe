"""Observes the run of a benchmark client from outside: CPU time of client and server while events
flow.
"""

from __future__ import annotations

import re
import resource
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock_lab.bench.compare.processes import CPUS, ProcessTree, machine_cpu_seconds
from support.servers import Server

INTERVAL_S = 0.2
TOKENS = "vllm:generation_tokens_total"


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation: CPU seconds of each process tree since its start, and events that the server
    has sent.
    """

    at: float
    client_cpu: float
    server_cpu: float
    events: float


@dataclass(frozen=True, slots=True)
class Watched:
    """Observations of a client from its start to its exit."""

    samples: tuple[Sample, ...]
    cpu_s: float
    """CPU seconds of the client's process tree in user and kernel mode, including start-up and
    statistics.
    """
    foreign_share: float
    """Share of the whole machine's CPU time that other processes used (0 to 1)."""
    in_time: bool


def watch(client: ProcessTree, server: Server, patience: float) -> Watched:
    """Observe `client` until it exits. It is ended if that takes more than `patience` seconds."""
    begin, machine = time.monotonic(), machine_cpu_seconds()
    reaped, own, served = _children_cpu(), time.process_time(), server.tree.cpu_seconds()
    samples: list[Sample] = []
    spent = 0.0
    while client.alive() and time.monotonic() - begin < patience:
        events = server.counters()[TOKENS]
        # The CPU time of the living processes drops when one of them ends.
        spent = max(spent, client.cpu_seconds())
        samples.append(Sample(time.monotonic(), spent, server.tree.cpu_seconds(), events))
        time.sleep(INTERVAL_S)
    in_time = not client.alive()
    client.end()
    used = _children_cpu() - reaped
    own, served = time.process_time() - own, server.tree.cpu_seconds() - served
    foreign = machine_cpu_seconds() - machine - used - served - own
    share = max(0.0, foreign) / (time.monotonic() - begin) / CPUS
    return Watched(tuple(samples), used, share, in_time)


def _children_cpu() -> float:
    """CPU seconds of this process's children that were waited for, including their own children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def client_share(samples: Sequence[Sample], duration: float) -> float:
    """Share of one core (0 to 1) that the client used from the first event on, during the
    `duration` in seconds that it reports, or until its exit if that is earlier. 0 without events.
    """
    first = _first(samples)
    if first is None or samples[-1].at <= samples[first].at:
        return 0.0
    begin = samples[first]
    end = min(begin.at + duration, samples[-1].at)
    times, used = [sample.at for sample in samples], [sample.client_cpu for sample in samples]
    return (_between(times, used, end) - begin.client_cpu) / (end - begin.at)


def server_share(samples: Sequence[Sample]) -> float:
    """Share of one core (0 to 1) that the server used between its first and last event; 0 without
    events.
    """
    first = _first(samples)
    if first is None:
        return 0.0
    last = next(
        index for index, sample in enumerate(samples) if sample.events == samples[-1].events
    )
    begin, end = samples[first], samples[last]
    return (end.server_cpu - begin.server_cpu) / (end.at - begin.at) if end.at > begin.at else 0.0


def _first(samples: Sequence[Sample]) -> int | None:
    """Index of the first sample after the load's first events. Requests to the tokenizer cause a
    few events before them, which do not count.
    """
    few = samples[0].events + 0.01 * (samples[-1].events - samples[0].events) if samples else 0.0
    return next((index for index, sample in enumerate(samples) if sample.events > few), None)


def _between(times: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at the time `at`, by linear interpolation between samples."""
    right = min(max(bisect_left(times, at), 1), len(times) - 1)
    left = right - 1
    span = times[right] - times[left]
    return values[left] + (values[right] - values[left]) * (at - times[left]) / span


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
