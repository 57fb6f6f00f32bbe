"""Survey: which operations run on which nodes, in order, until all is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from penstock.config.flags import MASTER_PORT
from penstock_ops.verify.between.coordinator import Coordinator, Reply, Request
from penstock_ops.verify.between.limits import (
    bandwidth_bound,
    has_stopped,
    is_slow,
    latency_bound,
)
from penstock_ops.verify.between.measurements import Measurements, Reduction
from penstock_ops.verify.between.probes import (
    CONNECT_SECONDS,
    DRAIN_SECONDS,
    IDLE_SECONDS,
    SEGMENT_SECONDS,
    Transfer,
)
from penstock_ops.verify.between.rails import measure_rails
from penstock_ops.verify.between.rdma import BANDWIDTH, LATENCY
from penstock_ops.verify.between.rounds import Pair, schedule, slow_members
from penstock_ops.verify.finding import Status
from penstock_ops.verify.needs import Needs

STAMPS = 8
"""Exchanges of stamps; the fastest gives the clock's offset."""
AGAIN = 2
"""How often a slow pair is measured again. The best value counts: another load may have used the
link or the processors.
"""
BATCH = 128
"""Peers of one request. With names of 253 characters, the longest of DNS, it is smaller than
REQUEST_BYTES.
"""
SAMPLES = 100
"""Round trips of a small message."""
REPEATS = 30
LEAST_REPEATS = 5
LOCATION_SECONDS = 2.0
"""Time of the all-reduces of a group while slow nodes are located: slow ones repeat less often."""
WARM_UP = 5
"""All-reduces that are not counted: they open connections and grow windows."""


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float = 1.0
    """Duration of a transfer."""
    patience: float = 15.0
    """Seconds that a node may take to answer, beside the time of an operation."""
    join: float = 60.0
    """Seconds until an agent's first message."""
    fixed_port: int = MASTER_PORT
    """Port of the first node that the other nodes' ranks call."""


def survey(
    coordinator: Coordinator, needs: Needs, settings: Settings, checks: Collection[str]
) -> Measurements:
    """Measure what `checks`, by name, need of all nodes and pairs. Lost nodes are left out from
    then on.
    """
    found = Measurements(
        tuple(node.name for node in coordinator.nodes), fixed_port=settings.fixed_port
    )
    for stage, readers in STAGES:
        if readers & set(checks):
            stage(coordinator, found, needs, settings)
    if {BANDWIDTH, LATENCY} & set(checks):
        measure_rails(coordinator, found, needs)
    found.lost = {at: node.lost for at, node in enumerate(coordinator.nodes) if node.lost}
    return found


def _clocks(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    for _ in range(STAMPS):
        run.run("stamp", {})
    for at in run.alive:
        found.clocks[at] = min(run.nodes[at].clocks, key=lambda each: each.uncertainty)


def _names(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    for peers in _batches([peer for peer, node in enumerate(run.nodes) if node.host]):
        names = [run.nodes[peer].host for peer in peers]
        for at, reply in run.run("resolve", {"names": names}, IDLE_SECONDS).items():
            rows = _rows(found, "resolve", at, reply, len(names))
            for peer, row in zip(peers, rows, strict=False):
                if peer != at:
                    found.names[at, peer] = (row["seconds"], row["error"])


def _batches(peers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(peers), BATCH):
        yield peers[start : start + BATCH]


def _rows(found: Measurements, operation: str, at: int, reply: Reply, size: int) -> list[Any]:
    """The rows of a reply that must have `size` of them; none, with the reason kept, otherwise."""
    if not reply.error and len(reply.result) == size:
        return list(reply.result)
    found.reasons[operation, at] = reply.error or f"{len(reply.result)} rows, expected {size}"
    return []


def _line_rate(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    replies = run.run("line_rate", {})
    rates = [reply.result for reply in replies.values() if not reply.error]
    found.line_rate = min(rates, default=0.0)


def _reach(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    """Round trips of all pairs that reach each other. One node after another measures, so that none
    disturbs another.
    """
    _connect(run, found)
    alive = run.alive
    reached = {
        at: [peer for peer in alive if peer != at and (at, peer) not in found.unreachable]
        for at in alive
    }
    _round_trips(run, found, reached)
    for _ in range(AGAIN):
        bound = latency_bound(found.round_trip_us.values())
        again: dict[int, list[int]] = {}
        for (at, peer), value in found.round_trip_us.items():
            if bound.status(value) is not Status.PASS:
                again.setdefault(at, []).append(peer)
        _round_trips(run, found, again)


def _connect(run: Coordinator, found: Measurements) -> None:
    """Connect all pairs, all nodes at the same time, because an unreachable one takes a timeout.
    Each begins with the node after it, so that a node's connections arrive spread over time.
    """
    alive = run.alive
    peers = {at: [*alive[place + 1 :], *alive[:place]] for place, at in enumerate(alive)}
    for start in range(0, len(alive) - 1, BATCH):
        batches = {at: each[start : start + BATCH] for at, each in peers.items()}
        requests = {at: _to_peers(run, "connections", batch) for at, batch in batches.items()}
        for at, reply in run.run_each(requests).items():
            rows = _rows(found, "connections", at, reply, len(batches[at]))
            for peer, error in zip(batches[at], rows, strict=False):
                if error:
                    found.unreachable[at, peer] = error


def _to_peers(run: Coordinator, operation: str, peers: Sequence[int], **others: Any) -> Request:
    arguments = {"peers": [run.nodes[peer].target for peer in peers], **others}
    return Request(operation, arguments, (1 + len(peers)) * CONNECT_SECONDS)


def _round_trips(run: Coordinator, found: Measurements, wanted: Mapping[int, list[int]]) -> None:
    """Connect each node to some peers; keep the fastest round trip of a pair."""
    for at, peers in wanted.items():
        for batch in _batches(peers):
            _reach_batch(run, found, at, [peer for peer in batch if not run.nodes[peer].lost])


def _reach_batch(run: Coordinator, found: Measurements, at: int, peers: Sequence[int]) -> None:
    request = _to_peers(run, "reach", peers, samples=SAMPLES)
    for reply in run.run_each({at: request}).values():
        rows = _rows(found, "reach", at, reply, len(peers))
        for peer, row in zip(peers, rows, strict=False):
            value, best = row["round_trip_us"], found.round_trip_us.get((at, peer))
            if value is not None:
                resent = found.idle_resent.get((at, peer), 0) + row["resent"]
                found.idle_resent[at, peer] = resent
                found.round_trip_us[at, peer] = value if best is None else min(value, best)
            elif best is None:
                found.unreachable[at, peer] = row["error"]


def _fixed_port(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    first, *others = run.alive or [0]
    if first != 0 or not others or not settings.fixed_port:
        return
    run.run_each({first: Request("listen", {"port": settings.fixed_port}, 0.0)})
    target = {"address": run.nodes[first].address, "port": settings.fixed_port}
    request = Request("connections", {"peers": [target]}, CONNECT_SECONDS)
    for at, reply in run.run_each(dict.fromkeys(others, request)).items():
        for error in _rows(found, "connections", at, reply, 1):
            found.checked_ports.add((at, first))
            if error:
                found.closed[at, first] = error


def _transfers(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    rounds = schedule(len(run.nodes))
    _measure(run, found, rounds, settings)
    for _ in range(AGAIN):
        bound = bandwidth_bound(found)
        slow = {
            pair
            for pair, value in found.transfers.items()
            if is_slow(value, bound) and not has_stopped(value)
        }
        if not slow:
            return
        _measure(
            run, found, [[pair for pair in pairs if pair in slow] for pairs in rounds], settings
        )


def _measure(
    run: Coordinator, found: Measurements, rounds: Sequence[Collection[Pair]], settings: Settings
) -> None:
    """Transfer data between the pairs of each round at the same time; keep the best of a pair."""
    for pairs in rounds:
        requests = {
            source: Request(
                "transfer",
                {**run.nodes[target].target, "seconds": settings.seconds},
                settings.seconds + CONNECT_SECONDS + DRAIN_SECONDS,
            )
            for source, target in pairs
            if not run.nodes[target].lost and (source, target) not in found.unreachable
        }
        targets = dict(pairs)
        for source, reply in run.run_each(requests).items():
            pair = source, targets[source]
            if reply.error:
                if pair not in found.transfers:
                    found.unreachable[pair] = reply.error
                continue
            value = Transfer(**{name: reply.result[name] for name in Transfer.__slots__})
            if pair not in found.transfers or value.gb_per_s > found.transfers[pair].gb_per_s:
                found.transfers[pair] = value


def _segments(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    """The largest segments that pass where a transfer stopped."""
    seconds = 2 * (SEGMENT_SECONDS + CONNECT_SECONDS)
    for pairs in schedule(len(run.nodes)):
        requests = {
            source: Request("segment", run.nodes[target].target, seconds)
            for source, target in pairs
            if has_stopped(found.transfers.get((source, target)))
        }
        targets = dict(pairs)
        for source, reply in run.run_each(requests).items():
            if not reply.error:
                found.largest_segment[source, targets[source]] = reply.result


def _reduction(run: Coordinator, found: Measurements, needs: Needs, settings: Settings) -> None:
    alive = run.alive
    size, bound = needs.reduced_bytes, needs.bound("all_reduce_us", "us")
    if needs.devices:
        reason = (
            "ranks of devices reduce by NCCL, which these probes do not use: see all-reduce-rate"
        )
        found.skipped["all_reduce"] = reason
        return
    if found.unreachable or any(map(has_stopped, found.transfers.values())):
        reason = "not measured, because the nodes do not all reach each other"
        found.skipped["all_reduce"] = reason
        return
    if len(alive) < 2:
        return

    taken = _reduce(run, found, [alive], size, REPEATS)[0]
    if taken != taken:
        return
    slow: list[int] = []
    is_between = False
    limit = bound.needed if bound.needed is not None else bound.expected
    if limit is not None and taken > limit and len(alive) > 2:
        repeats = max(LEAST_REPEATS, min(REPEATS, int(LOCATION_SECONDS * 1e6 / taken)))

        def are_slow(groups: list[list[int]]) -> list[bool]:
            return [not value <= limit for value in _reduce(run, found, groups, size, repeats)]

        slow, is_between = slow_members(alive, are_slow)
    found.reduction = Reduction(size, taken, tuple(slow), is_between)


def _reduce(
    run: Coordinator,
    found: Measurements,
    groups: Sequence[Sequence[int]],
    size: int,
    repeats: int,
) -> list[float]:
    """Microseconds of an all-reduce in each of disjoint groups; NaN for one that failed."""
    ports = run.run_each({group[0]: Request("free_port", {}, 0.0) for group in groups})
    requests = {}
    for group in groups:
        reply = ports.get(group[0])
        if reply is None or reply.error:
            continue
        for rank, at in enumerate(group):
            arguments = {
                "address": run.nodes[group[0]].address,
                "port": reply.result,
                "rank": rank,
                "ranks": len(group),
                "bytes": size,
                "repeats": WARM_UP + repeats,
            }
            requests[at] = Request("all_reduce", arguments, 2 * IDLE_SECONDS)
    replies = run.run_each(requests)
    for at, reply in replies.items():
        if reply.error:
            found.reasons["all_reduce", at] = reply.error
    return [_slowest(group, replies) for group in groups]


def _slowest(group: Sequence[int], replies: dict[int, Reply]) -> float:
    """Median over repeats of the slowest rank's time."""
    rows = [replies[at].result for at in group if at in replies and not replies[at].error]
    if len(rows) < len(group) or len({len(row) for row in rows}) != 1:
        return float("nan")
    each = [max(times) for times in zip(*rows, strict=True)][WARM_UP:]
    return float(median(each)) if each else float("nan")


Stage = Callable[[Coordinator, Measurements, Needs, Settings], None]
OF_TRANSFERS = frozenset({"bandwidth", "loss", "path_mtu", "all_reduce"})
STAGES: Sequence[tuple[Stage, frozenset[str]]] = (
    (_clocks, frozenset({"clock_offset"})),
    (_names, frozenset({"peer_names"})),
    (_line_rate, OF_TRANSFERS),
    (_reach, frozenset({"ports", "latency"}) | OF_TRANSFERS),
    (_fixed_port, frozenset({"ports"})),
    (_transfers, OF_TRANSFERS),
    (_segments, OF_TRANSFERS),
    (_reduction, frozenset({"all_reduce"})),
)
"""In order, with the checks that read what each measures."""
