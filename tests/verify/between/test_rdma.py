"""RDMA between nodes: judgement of rails, and perftest's stubs on PATH under real agents."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle, permutations
from pathlib import Path

import pytest

from penstock.core import PenstockError
from penstock_ops.verify.between import perftest
from penstock_ops.verify.between.agent import OPERATIONS, Agent
from penstock_ops.verify.between.channel import LineChannel
from penstock_ops.verify.between.coordinator import Coordinator, Node
from penstock_ops.verify.between.measurements import Measurements, Memory, Rail
from penstock_ops.verify.between.rails import measure_rails
from penstock_ops.verify.between.rdma import judge_rdma
from penstock_ops.verify.between.rounds import Pair
from penstock_ops.verify.finding import Bound, Finding, Status
from penstock_ops.verify.needs import Needs
from tests.limits import HANG
from tests.verify.performance.texts import BANDWIDTH, LATENCY

NODES = ("a", "b", "c", "d")
NEEDS = Needs(
    plan="plan.yaml",
    nodes=2,
    devices=8,
    fabric_resources={"rdma/hca": 1},
    bounds={"rail_gbit_per_s": Bound(200.0, 400.0, "Gb/s")},
)
PUBLISHED = 396.5
"""Gb/s of 8 MiB, from host and from GPU memory (source 002, appendices F and G)."""
BAD = (Status.WARN, Status.FAIL, Status.UNKNOWN)


def rail(
    host: Mapping[Pair, float] | None = None,
    gpu: Mapping[Pair, float] | None = None,
    latency: Mapping[Pair, float] | None = None,
    nodes: int = 4,
) -> Rail:
    """A rail with the published rate, except for some pairs."""
    pairs = list(permutations(range(nodes), 2))
    rates = {
        Memory.HOST: {pair: (host or {}).get(pair, PUBLISHED) for pair in pairs},
        Memory.GPU: {pair: (gpu or {}).get(pair, PUBLISHED) for pair in pairs},
    }
    read = {pair: (latency or {}).get(pair, 3.6) for pair in pairs}
    return Rail("mlx5_0", "InfiniBand", 400.0, rates, read)


def judged(*rails: Rail, needs: Needs = NEEDS) -> list[Finding]:
    return list(judge_rdma(Measurements(NODES, rails=list(rails)), needs))


def bad(*rails: Rail, needs: Needs = NEEDS) -> list[Finding]:
    return [finding for finding in judged(*rails, needs=needs) if finding.status in BAD]


def test_the_published_rates_pass() -> None:
    findings = judged(rail())
    assert [finding.status for finding in findings] == [Status.PASS] * 3
    assert {finding.device for finding in findings} == {"mlx5_0"}


def test_halved_bandwidth_from_gpu_memory_fails_and_names_acs_and_ats() -> None:
    [finding] = bad(rail(gpu=dict.fromkeys(permutations(range(4), 2), PUBLISHED / 2)))
    assert (finding.check, finding.status) == ("rdma_bandwidth", Status.FAIL)
    assert "GPU memory: 198.2 Gb/s" in finding.summary
    assert "ACS" in finding.cause
    assert "ATS" in finding.cause
    assert "NUMA" in finding.cause
    assert "ATS_ENABLED" in finding.remedy


def test_a_rail_that_is_slow_both_ways_is_its_adapter() -> None:
    slow = {pair: 150.0 for pair in permutations(range(4), 2) if 2 in pair}
    [finding] = bad(rail(host=slow, gpu=slow), rail())
    assert (finding.node, finding.device, finding.status) == ("c", "mlx5_0", Status.FAIL)
    assert "its adapter" in finding.cause


def test_a_rail_that_is_slow_to_one_node_is_its_switch_port() -> None:
    slow = {pair: 380.0 for pair in permutations(range(4), 2) if pair[1] == 2}
    [finding] = bad(rail(host=slow, gpu=slow))
    assert (finding.node, finding.status) == ("c", Status.WARN)
    assert "switch port" in finding.cause


def test_a_worse_rate_from_gpu_memory_is_not_hidden_by_a_warning() -> None:
    everywhere = list(permutations(range(4), 2))
    findings = bad(rail(dict.fromkeys(everywhere, 380.0), dict.fromkeys(everywhere, 100.0)))
    assert [finding.status for finding in findings] == [Status.WARN, Status.FAIL]


def test_without_a_plan_the_port_decides() -> None:
    slow = dict.fromkeys(permutations(range(4), 2), 150.0)
    [finding] = bad(rail(host=slow, gpu=slow), needs=Needs())
    assert finding.status is Status.WARN
    assert finding.bound is not None
    assert (finding.bound.needed, finding.bound.expected) == (None, 388.0)


def test_a_slow_read_warns() -> None:
    [finding] = bad(rail(latency={(0, 1): 25.0}))
    assert (finding.check, finding.node) == ("rdma_latency", "a -> b")


def test_no_lower_rate_is_judged_better() -> None:
    order = (Status.PASS, Status.WARN, Status.FAIL)
    pairs = list(permutations(range(2), 2))
    for memory in Memory:
        ranks = []
        for value in (400.0, 388.0, 387.0, 200.0, 199.0, 1.0):
            one = rail(nodes=2)
            one.gbit_per_s[memory] = dict.fromkeys(pairs, value)
            ranks.append(max(order.index(finding.status) for finding in judged(one)))
        assert ranks == [0, 0, 1, 1, 2, 2]


STUB = """#!/bin/sh
case $1 in --version | --help) echo "--use_cuda=<cuda device id>"; exit ;; esac
for last; do :; done
[ "$last" = 127.0.0.1 ] || exec sleep 60
read -r mode < "${0%/*}/mode"
case $mode in hang) exec sleep 60 ;; die) kill -SEGV $$ ;; esac
case $* in *--use_cuda=0*) cat "$0.gpu.txt" ;; *) cat "$0.txt" ;; esac
"""
SERVER = """#!/usr/bin/env -S python3 -IS
import socket, sys
socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1]))).accept()
"""
SLOW = BANDWIDTH.replace("396.44", "198.22").replace("0.047259", "0.023630")


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stubs of perftest, and an adapter and a GPU in place of this machine's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("ib_write_bw", BANDWIDTH), ("ib_read_lat", LATENCY)):
        (tools / f"{name}.txt").write_text(text)
        (tools / f"{name}.gpu.txt").write_text(text)
        (tools / name).write_text(STUB)
        (tools / name).chmod(0o755)
    (tools / "mode").write_text("print\n")
    port = tmp_path / "root/sys/class/infiniband/mlx5_0/ports/1"
    gpu = tmp_path / "root/sys/bus/pci/devices/0000:04:00.0"
    for path, files in (
        (port, {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}),
        (gpu, {"class": "0x030200", "vendor": "0x10de"}),
    ):
        path.mkdir(parents=True)
        for name, text in files.items():
            (path / name).write_text(f"{text}\n")
    found = perftest.adapters(tmp_path / "root")
    monkeypatch.setattr(perftest, "adapters", lambda: found)
    # A server of the stubs does not listen: free before it starts, then not.
    turns = cycle((False, True))
    monkeypatch.setattr(perftest, "listens", lambda port: next(turns))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools


@contextmanager
def coordinated(names: tuple[str, ...] = ("a", "b")) -> Iterator[Coordinator]:
    nodes, threads = [], []
    for name in names:
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        reads, writes = os.fdopen(request_read, "rb"), os.fdopen(answer_write, "wb")
        agent = Agent(LineChannel(reads, writes), "127.0.0.1")
        threads.append(threading.Thread(target=agent.run))
        threads[-1].start()
        channel = LineChannel(os.fdopen(answer_read, "rb"), os.fdopen(request_write, "wb"))
        nodes.append(Node(name, channel))
    coordinator = Coordinator(nodes, HANG, HANG)
    try:
        yield coordinator
    finally:
        coordinator.close()
        for thread in threads:
            thread.join(HANG)


def measured() -> tuple[Measurements, list[Finding]]:
    found = Measurements(("a", "b"))
    with coordinated() as coordinator:
        measure_rails(coordinator, found, NEEDS)
        assert not any(node.lost for node in coordinator.nodes)
    return found, list(judge_rdma(found, NEEDS))


def test_agents_run_perftest_from_both_memories(stubs: Path) -> None:
    found, findings = measured()
    [one] = found.rails
    assert one.gbit_per_s == {
        memory: {(0, 1): 396.44, (1, 0): 396.44} for memory in (Memory.HOST, Memory.GPU)
    }
    assert one.read_us == {(0, 1): 3.56, (1, 0): 3.56}
    assert [finding.status for finding in findings] == [Status.PASS] * 3


def test_agents_find_slow_gpu_memory(stubs: Path) -> None:
    (stubs / "ib_write_bw.gpu.txt").write_text(SLOW)
    _, findings = measured()
    slow = [finding for finding in findings if finding.status in BAD]
    assert {finding.status for finding in slow} == {Status.FAIL}
    assert all("GPU memory: 198.2 Gb/s" in finding.summary for finding in slow)
    assert {finding.node for finding in slow} == {"a -> b", "b -> a"}


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [
        ("hang", BANDWIDTH, "ib_write_bw: no end after 0.5 s"),
        ("die", BANDWIDTH, "ib_write_bw: exit status -11"),
        ("print", BANDWIDTH[: BANDWIDTH.index("0.047259")], "line 10"),
        ("print", BANDWIDTH.replace("Gb/sec", "GB/sec"), "expected BW average in one of"),
        ("print", BANDWIDTH.replace("1048576", "  65536"), "line 10"),
    ],
)
def test_a_run_that_fails_is_no_pass(
    stubs: Path, monkeypatch: pytest.MonkeyPatch, mode: str, text: str, reason: str
) -> None:
    (stubs / "mode").write_text(f"{mode}\n")
    (stubs / "ib_write_bw.txt").write_text(text)
    (stubs / "ib_write_bw.gpu.txt").write_text(text)
    if mode == "hang":
        monkeypatch.setattr(perftest, "RUN_SECONDS", 0.5)
    found, findings = measured()
    [one] = found.rails
    assert one.gbit_per_s == {}
    failed = [finding for finding in findings if finding.check == "rdma_bandwidth"]
    assert {finding.status for finding in failed} == {Status.UNKNOWN}
    assert all(reason in finding.summary for finding in failed)
    assert {finding.node for finding in failed} == {"a -> b", "b -> a"}


def test_a_server_is_ready_when_it_listens(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text(SERVER)
    program.chmod(0o755)
    port = perftest.FIRST_PORT + perftest.PORTS - 1
    server = perftest.Server()
    server.start((str(program), "-p", str(port)), port)
    try:
        assert perftest.listens(port)
        with pytest.raises(PenstockError, match="in use"):
            perftest.Server().start(("true",), port)
    finally:
        server.close()
    assert not perftest.listens(port)
    with pytest.raises(PenstockError, match="status 0"):
        server.start(("true",), port)


def test_without_perftest_it_is_skipped_by_name(
    stubs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stubs / "ib_read_lat").unlink()
    found, findings = measured()
    assert not found.rails
    assert {finding.status for finding in findings} == {Status.SKIPPED}
    assert all("a: no program ib_read_lat" in finding.summary for finding in findings)


def test_a_server_that_ends_at_once_is_named(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perftest, "listens", lambda port: False)
    for program in stubs.glob("ib_*_??*"):
        if not program.suffix:
            program.write_text("#!/bin/sh\n[ $# -gt 1 ] && exit 3\n")
    found, findings = measured()
    [one] = found.rails
    assert one.gpu_reason == "perftest of a was built without CUDA"
    text = [finding.summary for finding in findings if finding.status is Status.UNKNOWN]
    assert text
    assert all("the server ended with status 3" in summary for summary in text)


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "mlx5_9"},
        {"device": "--help"},
        {"port": 22},
        {"test": "sh"},
        {"gpu": 64},
        {"address": "--use_hugepages"},
    ],
)
def test_an_agent_runs_nothing_else(stubs: Path, changed: Mapping[str, object]) -> None:
    arguments = {"test": "write_bandwidth", "device": "mlx5_0", "port": 18515, "address": "x"}
    agent = Agent.__new__(Agent)
    agent.clock, agent.operations = lambda: 0.0, OPERATIONS
    request = {"id": 1, "operation": "rdma_measure", "arguments": {**arguments, **changed}}
    assert "error" in agent._answer(request)


def test_the_nearest_gpu_of_an_adapter(tmp_path: Path) -> None:
    """Below the same bridge; in a virtual machine, whose bus is flat, by its number."""
    for layout, expected in (("{1}/{0}", [1, 0]), ("{0}", [0, 1])):
        root = tmp_path / str(len(expected) + sum(expected[:1]))
        for number in (0, 1):
            port = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
            port.mkdir(parents=True)
            for name, text in (
                ("state", "4: ACTIVE"),
                ("rate", "400 Gb/sec (4X NDR)"),
                ("link_layer", "InfiniBand"),
            ):
                (port / name).write_text(f"{text}\n")
            below = root / "sys/devices/pci0000:00"
            adapter = below / layout.format(f"0000:1{number}:00.0", f"0000:00:0{number}.0")
            gpu = below / layout.format(f"0000:0{5 + number}:00.0", f"0000:00:0{1 - number}.0")
            for path, files in (
                (adapter, {}),
                (gpu, {"class": "0x030200", "vendor": "0x10de"}),
            ):
                path.mkdir(parents=True, exist_ok=True)
                for name, text in files.items():
                    (path / name).write_text(f"{text}\n")
            (port.parents[1] / "device").symlink_to(adapter)
            links = root / "sys/bus/pci/devices"
            links.mkdir(parents=True, exist_ok=True)
            (links / gpu.name).symlink_to(gpu)
        assert [each.gpu for each in perftest.adapters(root)] == expected
