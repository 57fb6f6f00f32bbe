"""Measures rails: which adapters exist on all nodes, then perftest between the nodes' adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_ops.verify.between import perftest
from penstock_ops.verify.between.coordinator import Coordinator, Reply, Request
from penstock_ops.verify.between.measurements import Measurements, Memory, Rail
from penstock_ops.verify.between.rdma import BANDWIDTH, LATENCY
from penstock_ops.verify.between.rounds import Pair, schedule
from penstock_ops.verify.error import ParseError
from penstock_ops.verify.needs import Needs
from penstock_ops.verify.performance.perftest import parse_bandwidth, parse_latency

FULL = 4
"""Nodes whose pairs are all measured: eight rails take a minute for each round."""
LATENCY_BYTES = 8


def measure_rails(run: Coordinator, found: Measurements, needs: Needs) -> None:
    """Rates from host and from GPU memory, and latencies, of each rail."""
    if len(run.alive) < 2:
        return
    seconds = 3 * perftest.HELP_SECONDS
    replies = run.run("rdma_adapters", {}, seconds)
    for at, reply in replies.items():
        if reply.error:
            found.reasons["rdma_adapters", at] = reply.error
    nodes = {at: reply.result for at, reply in replies.items() if not reply.error}
    if reason := _reason(found, nodes):
        found.skipped |= {BANDWIDTH: reason, LATENCY: reason}
        return
    for name in _planned(nodes, needs):
        rows = {at: _row(node, name) for at, node in nodes.items()}
        rail = Rail(
            name,
            next(iter(rows.values()))["layer"],
            min(row["gbit_per_s"] for row in rows.values()),
            gpu_reason=_gpu_reason(found, nodes, rows),
        )
        found.rails.append(rail)
        _measure(run, rail, rows, Memory.HOST, BANDWIDTH)
        if not rail.gpu_reason:
            _measure(run, rail, rows, Memory.GPU, BANDWIDTH)
        _measure(run, rail, rows, Memory.HOST, LATENCY)


def _reason(found: Measurements, nodes: Mapping[int, Any]) -> str:
    """Why there is nothing to measure; empty if there is."""
    if len(nodes) < 2:
        return "fewer than two nodes report their adapters"
    for at, node in sorted(nodes.items()):
        if not node["adapters"]:
            return f"{found.nodes[at]} has no RDMA adapter with an active port"
    for at, node in sorted(nodes.items()):
        if node["missing"]:
            return f"{found.nodes[at]}: {node['missing']}"
    if not _common(nodes):
        return "no active RDMA adapter has one name on all nodes"
    return ""


def _common(nodes: Mapping[int, Any]) -> list[str]:
    each = [{row["name"] for row in node["adapters"]} for node in nodes.values()]
    return sorted(set.intersection(*each))


def _planned(nodes: Mapping[int, Any], needs: Needs) -> list[str]:
    """The adapters of the plan. A node may have more, such as slower ones for storage."""
    names = _common(nodes)
    wanted = sum(needs.fabric_resources.values()) or len(names)
    fastest = sorted(
        names, key=lambda name: -max(_row(node, name)["gbit_per_s"] for node in nodes.values())
    )
    return sorted(fastest[:wanted])


def _row(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(row for row in node["adapters"] if row["name"] == name)


def _gpu_reason(found: Measurements, nodes: Mapping[int, Any], rows: Mapping[int, Any]) -> str:
    for at, node in sorted(nodes.items()):
        if rows[at]["gpu"] < 0:
            return f"{found.nodes[at]} has no GPU"
        if not node["has_gpu_option"]:
            return f"perftest of {found.nodes[at]} was built without CUDA"
    return ""


def _measure(
    run: Coordinator, rail: Rail, rows: Mapping[int, Any], memory: Memory, check: str
) -> None:
    """One test of a rail, in rounds of disjoint pairs, both directions of each."""
    test = "write_bandwidth" if check == BANDWIDTH else "read_latency"

    def arguments(at: int) -> dict[str, Any]:
        gpu = {"gpu": rows[at]["gpu"]} if memory is Memory.GPU else {}
        return {"test": test, "device": rail.device, "port": perftest.FIRST_PORT, **gpu}

    for pairs in schedule(len(run.nodes), FULL):
        both = [pair for pair in pairs if set(pair) <= set(rows)]
        servers = run.run_each(
            {b: Request("rdma_serve", arguments(b), perftest.LISTEN_SECONDS) for _, b in both}
        )
        ready = {a: b for a, b in both if b in servers and not servers[b].error}
        for a, b in both:
            if a not in ready:
                reason = servers[b].error if b in servers else "the node was lost"
                rail.failures[check, str(memory), (a, b)] = reason
        clients = run.run_each(
            {
                a: Request(
                    "rdma_measure",
                    {**arguments(a), "address": run.nodes[b].address},
                    perftest.RUN_SECONDS,
                )
                for a, b in ready.items()
            }
        )
        for a, b in ready.items():
            reply = clients.get(a, Reply(error="the node was lost"))
            _keep(rail, check, memory, (a, b), reply)


def _keep(rail: Rail, check: str, memory: Memory, pair: Pair, reply: Reply) -> None:
    try:
        if reply.error:
            rail.failures[check, str(memory), pair] = reply.error
        elif check == BANDWIDTH:
            rail.gbit_per_s.setdefault(memory, {})[pair] = bandwidth_of(reply.result)
        else:
            rail.read_us[pair] = latency_of(reply.result)
    except ParseError as error:
        rail.failures[check, str(memory), pair] = str(error)


def bandwidth_of(text: str) -> float:
    """Gb/s of the one size that was measured."""
    rows = parse_bandwidth(text)
    if [row.bytes for row in rows] != [perftest.BYTES]:
        raise ParseError(1, f"{[row.bytes for row in rows]} bytes", f"{perftest.BYTES}")
    return rows[0].gbit_per_s


def latency_of(text: str) -> float:
    """Microseconds of the one size that was measured."""
    rows = parse_latency(text)
    if [row.bytes for row in rows] != [LATENCY_BYTES]:
        raise ParseError(1, f"{[row.bytes for row in rows]} bytes", f"{LATENCY_BYTES}")
    return rows[0].microseconds
