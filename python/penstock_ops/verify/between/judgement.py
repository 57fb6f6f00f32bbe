"""Judgement: findings from what was measured between nodes. Pure.

Slow pairs are explained by as few nodes as possible: a slow row of the matrix is a node, a single
pair is the path between two, and all pairs are the switch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from statistics import median

from penstock import __version__
from penstock_ops.verify.between.fault_domains import (
    Fault,
    domain_findings,
    everyone,
    finding,
    measured_findings,
    pair_name,
)
from penstock_ops.verify.between.limits import (
    CLOCK_SECONDS,
    NAME_SECONDS,
    bandwidth_bound,
    is_lossy,
    is_slow,
    latency_bound,
)
from penstock_ops.verify.between.location import locate
from penstock_ops.verify.between.measurements import Measurements
from penstock_ops.verify.between.rdma import BANDWIDTH, LATENCY, judge_rdma
from penstock_ops.verify.between.rounds import Pair
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.needs import Needs

CHECKS: Mapping[str, str] = {
    "agents": "whether every node's agent answers",
    "peer_names": "whether every node resolves the others' names",
    "clock_offset": "whether the nodes' clocks agree",
    "ports": "whether every node reaches the others",
    "latency": "round trip of a small message between nodes",
    "bandwidth": "rate from each node to the others",
    "loss": "packets lost between nodes",
    "path_mtu": "size of packets that arrive",
    "all_reduce": "time of the plan's all-reduce between nodes",
    BANDWIDTH: "rate of each RDMA adapter between nodes, from host and GPU memory, by perftest",
    LATENCY: "time of a small RDMA read between nodes, by perftest",
}
"""Checks between nodes by name, for `--list-checks`."""


def judge(found: Measurements, needs: Needs) -> list[Finding]:
    """The findings of all checks of CHECKS."""
    judges: tuple[Callable[[Measurements, Needs], Iterator[Finding]], ...] = (
        _agents,
        _names,
        _clocks,
        _ports,
        _latency,
        _bandwidth,
        _loss,
        _path_mtu,
        _all_reduce,
        judge_rdma,
    )
    return [finding for each in judges for finding in each(found, needs)]


def _agents(found: Measurements, needs: Needs) -> Iterator[Finding]:
    for at, reason in sorted(found.lost.items()):
        cause, remedy = _lost_agent(found.nodes[at], reason)
        yield finding(
            "agents",
            found.nodes[at],
            Status.UNKNOWN,
            reason,
            layer=Layer.HOST,
            cause=cause,
            remedy=remedy,
        )
    for (operation, at), reason in sorted(found.reasons.items()):
        # A rank that is lost makes all ranks of an all-reduce fail.
        if operation == "all_reduce":
            continue
        yield finding(
            "agents",
            found.nodes[at],
            Status.UNKNOWN,
            f"{operation}: {reason}",
            layer=Layer.HOST,
            cause="the operation failed there",
            remedy="run the checks again; look at the node's log",
        )
    if not found.lost and not found.reasons:
        yield finding("agents", everyone(found), Status.PASS, "all agents answer", layer=Layer.HOST)


def _lost_agent(node: str, reason: str) -> tuple[str, str]:
    """Cause and remedy of an agent that is lost, by the status of its ssh (ssh(1): 255 is its own
    error; shells: 127 is a command that is not found).
    """
    if "ended with status 127" in reason:
        return (
            "no program penstock is in the PATH of logins without a terminal there",
            f"install Penstock {__version__}, which `ssh {node} penstock --version` must print",
        )
    if "ended with status 255" in reason:
        return (
            "ssh cannot log in there, or lost its connection",
            f"`ssh -o BatchMode=yes {node} true` must succeed: name, address, known_hosts, key",
        )
    if "install the same version" in reason:
        return "another version is there", f"install Penstock {__version__} on {node}"
    return (
        "the agent did not start, ended, or hangs",
        "run `penstock verify agent` there by hand; look at the host's load and log",
    )


def _names(found: Measurements, needs: Needs) -> Iterator[Finding]:
    bad = {pair: error for pair, (_, error) in found.names.items() if error}
    slow = {
        pair: seconds
        for pair, (seconds, error) in found.names.items()
        if not error and seconds > NAME_SECONDS
    }
    remedy = {
        "node": "compare its /etc/resolv.conf and /etc/hosts with others', or name addresses",
        "everywhere": "publish the names: a headless Service with publishNotReadyAddresses",
    }
    failed = Fault(
        "peer_names",
        {
            "node": "its resolver does not know the names",
            "to it": "nothing publishes its name",
        },
        remedy,
    )
    yield from domain_findings(
        found, found.names, bad, failed, Status.WARN, lambda pairs: bad[min(pairs)], Layer.HOST
    )
    late = Fault(
        "peer_names",
        {"node": "its resolver tries domains or servers that do not answer"},
        {"node": "use names with a final dot, or fewer search domains in /etc/resolv.conf"},
    )
    yield from domain_findings(
        found,
        found.names,
        slow,
        late,
        Status.WARN,
        lambda pairs: f"resolves in {max(slow[pair] for pair in pairs):.1f} s",
        Layer.HOST,
    )
    if found.names and not bad and not slow:
        yield finding(
            "peer_names",
            everyone(found),
            Status.PASS,
            "names resolve on all nodes",
            layer=Layer.HOST,
        )


def _clocks(found: Measurements, needs: Needs) -> Iterator[Finding]:
    """Clocks are compared with their median, because the coordinator's may be wrong, too."""
    if len(found.clocks) < 2:
        return
    middle = median(clock.seconds for clock in found.clocks.values())
    bound = Bound(None, CLOCK_SECONDS, "s", is_ceiling=True, formula="from the nodes' median")
    spread = max(abs(clock.seconds - middle) for clock in found.clocks.values())
    wrong = {
        at: clock
        for at, clock in found.clocks.items()
        if abs(clock.seconds - middle) > CLOCK_SECONDS + clock.uncertainty
    }
    remedy = "start chrony or another NTP client there: chronyc tracking"
    if len(found.clocks) == 2 and wrong:
        first, second = sorted(found.clocks)
        apart = abs(found.clocks[first].seconds - found.clocks[second].seconds)
        yield finding(
            "clock_offset",
            pair_name(found, (first, second)),
            Status.WARN,
            f"the clocks differ by {apart:.3f} s",
            layer=Layer.HOST,
            measured=apart,
            bound=bound,
            cause="one of both clocks is wrong",
            remedy=remedy,
        )
        return
    for at, clock in sorted(wrong.items()):
        away = clock.seconds - middle
        yield finding(
            "clock_offset",
            found.nodes[at],
            Status.WARN,
            f"the clock is {abs(away):.3f} s {'ahead' if away > 0 else 'behind'}",
            layer=Layer.HOST,
            measured=abs(away),
            bound=bound,
            cause="the clock is not synchronized",
            remedy=remedy,
        )
    if not wrong:
        text = f"the clocks differ from their median by at most {spread * 1e3:.1f} ms"
        yield finding(
            "clock_offset",
            everyone(found),
            Status.PASS,
            text,
            layer=Layer.HOST,
            measured=spread,
            bound=bound,
        )


def _ports(found: Measurements, needs: Needs) -> Iterator[Finding]:
    fault = Fault(
        "ports",
        {
            "node": "a firewall or network policy drops connections, or the link is down",
            "everywhere": "a firewall or network policy between the nodes",
        },
        {
            "node": "allow all TCP ports between the nodes: ranks choose ports at run time "
            "(nft list ruleset, kubectl get networkpolicy)",
        },
    )
    reached = {*found.round_trip_us, *found.transfers, *found.unreachable}
    yield from domain_findings(
        found,
        reached,
        found.unreachable,
        fault,
        Status.FAIL,
        lambda pairs: f"no connection: {found.unreachable[min(pairs)]}",
    )
    # Where no port is open, the fixed one is not another fault.
    closed = {pair: error for pair, error in found.closed.items() if pair not in found.unreachable}
    if closed:
        yield _closed_port(found, closed)
    if reached and not found.unreachable and not closed:
        text = "every node reaches every other one"
        port = f", and port {found.fixed_port} of {found.nodes[0]}" if found.checked_ports else ""
        yield finding("ports", everyone(found), Status.PASS, text + port)


def _closed_port(found: Measurements, closed: Mapping[Pair, str]) -> Finding:
    """One finding for the fixed port: of the first node if nobody reaches it."""
    callers = [found.nodes[pair[0]] for pair in sorted(closed)]
    is_first = len(closed) == len(found.checked_ports)
    node = found.nodes[0] if is_first else pair_name(found, min(closed))
    text = f"port {found.fixed_port} of {found.nodes[0]} cannot be reached from "
    return finding(
        "ports",
        node,
        Status.FAIL,
        f"{text}{', '.join(callers[:4])}{' and others' * (len(callers) > 4)}: "
        f"{closed[min(closed)]}",
        cause="a firewall or network policy drops connections to the port that ranks call",
        remedy=f"allow TCP port {found.fixed_port} to {found.nodes[0]}, or set --master-addr",
    )


def _latency(found: Measurements, needs: Needs) -> Iterator[Finding]:
    values = found.round_trip_us
    bound = latency_bound(values.values())
    slow = {pair for pair, value in values.items() if bound.status(value) is not Status.PASS}
    fault = Fault(
        "latency",
        {
            "node": "its processors are busy, or its network card waits before it interrupts",
            "pair": "the path between both is longer than others",
        },
        {
            "node": "look at its load; ethtool -C adaptive-rx off",
            "pair": "compare the routes: ip route get, traceroute",
        },
    )
    yield from measured_findings(found, values, slow, fault, bound, "round trip")


def _bandwidth(found: Measurements, needs: Needs) -> Iterator[Finding]:
    bound = bandwidth_bound(found)
    stopped = _stopped(found)
    rates = {pair: value.gb_per_s for pair, value in found.transfers.items() if pair not in stopped}
    slow = {pair for pair in rates if is_slow(found.transfers[pair], bound)}
    slow -= _explained(found, _lossy(found)) | _explained(found, stopped)
    fault = Fault(
        "bandwidth",
        {
            "node": "its port runs at a lower rate, is shaped, or its processors are busy",
            "pair": "a link on the path between both",
            "everywhere": "what all pairs share: the switch, or a limit of all nodes",
        },
        {
            "node": "ethtool DEVICE (speed), tc qdisc show, ethtool -S (errors); swap the cable",
            "pair": "look at the switches' links on this path",
            "everywhere": "look at the switch, and at the traffic of others",
        },
    )
    yield from measured_findings(found, rates, slow, fault, bound, "one TCP stream")


def _explained(found: Measurements, faulty: Collection[Pair]) -> set[Pair]:
    """Pairs that a fault of another check makes slow: all of a node that has it."""
    location = locate(found.transfers, faulty)
    nodes = {each.node for each in location.nodes}
    return {pair for pair in found.transfers if nodes & set(pair)} | set(faulty)


def _loss(found: Measurements, needs: Needs) -> Iterator[Finding]:
    lossy = _lossy(found)
    fault = Fault(
        "loss",
        {
            "node": "its link drops packets: a bad cable or optic, or a full receive ring",
            "pair": "a link on the path between both drops packets",
            "everywhere": "the switch drops packets",
        },
        {
            "node": "ethtool -S (crc, discards), ip -s link; swap the cable",
            "pair": "look at the error counters of the switches on this path",
        },
    )
    yield from domain_findings(
        found,
        found.transfers,
        lossy,
        fault,
        Status.FAIL,
        lambda pairs: (
            f"{100 * median(lossy[pair] for pair in pairs):.1f}% of the segments are "
            "sent again, although no queue is full"
        ),
    )
    if found.transfers and not lossy:
        yield finding("loss", everyone(found), Status.PASS, "no pair loses packets")


def _path_mtu(found: Measurements, needs: Needs) -> Iterator[Finding]:
    stopped = _stopped(found)
    fault = Fault(
        "path_mtu",
        {"node": "large packets vanish without a message of ICMP: a hole in the path's MTU"},
        {
            "node": "set the MTU of its interface, tunnel or CNI to what passes, and let ICMP "
            "type 3 code 4 pass"
        },
    )
    yield from domain_findings(
        found,
        found.transfers,
        stopped,
        fault,
        Status.FAIL,
        lambda pairs: f"small messages pass, a transfer stops; {_passing(found, pairs)}",
    )
    values = {
        pair: float(value.path_mtu)
        for pair, value in found.transfers.items()
        if value.path_mtu and pair not in stopped
    }
    if not values:
        return
    usual = median(values.values())
    bound = Bound(None, usual, "bytes", formula=f"the median of {len(values)} pairs")
    small = {pair for pair, value in values.items() if value < usual}
    fewer = Fault(
        "path_mtu",
        {"node": "its interface has a smaller MTU", "pair": "a tunnel on the path between both"},
        {"node": "ip link set DEVICE mtu, the same on all nodes, or the CNI's MTU"},
    )
    if stopped and not small:
        return
    yield from measured_findings(found, values, small, fewer, bound, "largest packet")


def _passing(found: Measurements, pairs: Collection[Pair]) -> str:
    sizes = [found.largest_segment[pair] for pair in pairs if found.largest_segment.get(pair)]
    mtu = max(found.transfers[pair].path_mtu for pair in pairs)
    if not sizes:
        return f"packets of {mtu} bytes do not arrive"
    return f"segments of {min(sizes)} bytes arrive, packets of {mtu} do not"


def _stopped(found: Measurements) -> set[Pair]:
    """Pairs whose transfer stopped at large packets."""
    return {
        pair
        for pair, size in found.largest_segment.items()
        if 0 < size < found.transfers[pair].path_mtu and not found.transfers[pair].has_ended
    }


def _lossy(found: Measurements) -> dict[Pair, float]:
    """The share of segments that were sent again, of pairs that lose packets."""
    stopped = _stopped(found)
    return {
        pair: value.resent / value.segments
        for pair, value in found.transfers.items()
        if pair not in stopped and is_lossy(value, found.idle_resent.get(pair, 0))
    }


def _all_reduce(found: Measurements, needs: Needs) -> Iterator[Finding]:
    if reason := found.skipped.get("all_reduce"):
        yield finding("all_reduce", everyone(found), Status.SKIPPED, reason)
        return
    value = found.reduction
    if value is None:
        errors = [text for (name, _), text in sorted(found.reasons.items()) if name == "all_reduce"]
        if errors or "all_reduce_us" in needs.bounds:
            yield finding(
                "all_reduce",
                everyone(found),
                Status.UNKNOWN,
                f"no all-reduce ended: {errors[0] if errors else 'fewer than two nodes'}",
                cause="a node did not take part in it",
                remedy="mend what other findings name, and run the checks again",
            )
        return
    bound = needs.bound("all_reduce_us", "us")
    status = bound.status(value.microseconds)
    result = finding(
        "all_reduce",
        everyone(found),
        status,
        f"{value.bytes / 1e3:.1f} KB over {len(found.nodes) - len(found.lost)} nodes: "
        f"{value.microseconds:,.0f} us",
        measured=value.microseconds,
        bound=bound,
    )
    if status is Status.PASS:
        yield result
        return
    cause = "the path between the nodes"
    if value.is_between and not value.slow_nodes:
        cause = "what connects the halves of the nodes: each half alone is fast enough"
    elif not value.slow_nodes:
        cause = "all nodes: the network's latency, or busy processors"
    remedy = "look at the findings of latency and bandwidth; plan with fewer nodes for a replica"
    if not value.slow_nodes or len(value.slow_nodes) == len(found.nodes):
        yield replace(result, cause=cause, remedy=remedy)
    for at in value.slow_nodes if len(value.slow_nodes) < len(found.nodes) else ():
        yield replace(
            result,
            node=found.nodes[at],
            cause="groups with this node are slow, others are not",
            remedy="look at its load, its link and the findings of latency and bandwidth",
        )
