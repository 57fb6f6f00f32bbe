"""The parts of the peer benchmark that need no peer: process trees, seeds, medians and the written report."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from peers.processes import Meter, ProcessTree
from peers.report import LATENCIES, Report, Run
from peers.workloads import WARM_UP, WORKLOADS

if not sys.platform.startswith("linux"):
    pytest.skip("the benchmark reads /proc", allow_module_level=True)

FAMILY = ["sh", "-c", "sleep 60 & sh -c 'sleep 60' & wait"]
ENDED = {"Z", "X", ""}


def state(pid: int) -> str:
    """One letter, as in ps; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def wait_for(tree: ProcessTree, members: int) -> list[int]:
    """The pids once there are that many; fails after 5 s."""
    deadline = time.monotonic() + 5
    while len(tree.pids()) < members:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return tree.pids()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[ProcessTree]:
    """A shell with two children."""
    tree = ProcessTree(FAMILY, {}, tmp_path / "log")
    yield tree
    tree.end(patience=0)


def test_a_tree_is_stopped_resumed_and_ended_as_a_whole(family: ProcessTree) -> None:
    pids = wait_for(family, 3)
    family.stop()
    assert {state(pid) for pid in pids} == {"T"}
    family.resume()
    deadline = time.monotonic() + 5
    while "T" in {state(pid) for pid in pids}:
        assert time.monotonic() < deadline
    family.end(patience=5)
    assert {state(pid) for pid in pids} <= ENDED
    assert not family.alive()


def test_a_child_that_lost_its_parent_is_still_found(tmp_path: Path) -> None:
    tree = ProcessTree(["sh", "-c", "sh -c 'sleep 60 &'; sleep 60"], {}, tmp_path / "log")
    try:
        orphans = [pid for pid in wait_for(tree, 3) if pid != tree.root.pid]
    finally:
        tree.end(patience=5)
    assert {state(pid) for pid in orphans} <= ENDED


def test_the_meter_charges_the_tree_for_its_work(tmp_path: Path) -> None:
    tree = ProcessTree([sys.executable, "-c", "while True: pass"], {}, tmp_path / "log")
    try:
        meter = Meter(tree)
        time.sleep(0.5)
        shares = meter.read()
    finally:
        tree.end(patience=5)
    assert 0.05 < shares["server_cpu_s"] <= 0.6
    assert 0 <= shares["foreign_share"] <= 1


def test_seeds_differ_between_workloads_repeats_and_attempts() -> None:
    seeds = [
        w.seed(repeat, attempt) for w in WORKLOADS.values() for repeat in range(1, 20) for attempt in range(5)
    ]
    seeds += [workload.seed(0, 0) for workload in WARM_UP]
    assert len(set(seeds)) == len(seeds)


def numbers(throughput: float, tpot: float) -> dict[str, float]:
    """A run's numbers, zero where the test does not look."""
    latencies = {f"{s}_{name}_ms": 0.0 for s in ("mean", "median", "p99") for name in LATENCIES}
    others = dict.fromkeys(
        ("input_throughput", "pss_mb", "server_cpu_s", "client_cpu_s", "foreign_share", "failed"), 0.0
    )
    return {**others, **latencies, "output_throughput": throughput, "median_tpot_ms": tpot}


def test_the_report_divides_medians_and_hides_directories(tmp_path: Path) -> None:
    report = Report("Title", "today", f"{tmp_path}/run", {"commit": "abc"}, hidden={str(tmp_path): "$DIR"})
    for name in ("penstock", "peer"):
        command = [f"{tmp_path}/bin/{name}", "serve"]
        report.contenders[name] = {
            "numerics": "4 bit",
            "ready_s": 0.5,
            "command": command,
            "environment": {"A": "1"},
        }
    for repeat, (mine, theirs) in enumerate(((300, 90), (200, 100), (100, 110)), start=1):
        report.runs.append(Run("penstock", "W1", repeat, 1, numbers(mine, 2.0)))
        report.runs.append(Run("peer", "W1", repeat, 1, numbers(theirs, 8.0)))
    report.write(tmp_path / "out/result")
    picture = ElementTree.parse(tmp_path / "out/result.svg").getroot()
    labels = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert labels[-4:] == ["penstock", "200", "peer", "100"]
    widths = [float(element.attrib["width"]) for element in picture.iter() if element.tag.endswith("rect")]
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3)
    text = (tmp_path / "out/result.md").read_text()
    assert "| W1 | output tok/s | higher | 200.0 | 2.00 |" in text
    assert "| W1 | TPOT median | lower | 2.0 | 0.25 |" in text
    assert "* peer: `A=1 $DIR/bin/peer serve`" in text
    data = json.loads((tmp_path / "out/result.json").read_text())
    assert len(data["runs"]) == 6
    assert str(tmp_path) not in text + json.dumps(data)
