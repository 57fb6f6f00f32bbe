"""Comparisons of real processes under a scripted load: turns, states, seeds, failures, and what is
left.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.config.machine import free_port
from penstock.core import InvalidValueError, PenstockError
from penstock_lab.bench.compare.comparison import Comparison, Rules
from penstock_lab.bench.compare.journal import Journal
from penstock_lab.bench.compare.recipe import Recipe, Values
from penstock_lab.bench.compare.server_under_test import ServerUnderTest
from penstock_lab.bench.compare.servers import Entry
from penstock_lab.bench.compare.summary import Workload, summarise
from penstock_lab.bench.compare.workloads import Planned
from penstock_lab.bench.target import Address
from tests.bench.results import load_comparison, load_results

if not sys.platform.startswith("linux"):
    pytest.skip("process trees are read from /proc", allow_module_level=True)

FAKE = Path(__file__).with_name("fake_server.py")
WORKLOADS = [
    Planned(Workload(name), ["serve"], argparse.Namespace(name=name)) for name in ("W1", "W2")
]
WARM_UP = argparse.Namespace(name="warm-up")
RULES = Rules(
    order="interleaved",
    repeats=2,
    seed=7,
    warm_up=[WARM_UP],
    patience=60,
    quiet_wait=0,
    max_foreign=1.0,
    attempts=1,
)


def state(pid: int) -> str:
    """One letter, as in ps; empty when the process is gone."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if found in "ZX" else found


class Stage:
    """A comparison of fake servers, and a load that records the state of all servers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: list[ServerUnderTest] = []
        self.calls: list[tuple[str, str, int]] = []
        """Server, workload and seed of each load, warm-ups included."""
        self.states: list[dict[str, str]] = []
        self.said: list[str] = []
        self.during: Callable[[str, Mapping[str, object]], dict[str, Any]] = lambda server, tags: {}
        """Changes of a result, made while the load runs."""

    def add(self, name: str, *flags: str) -> None:
        command = [sys.executable, str(FAKE), "{port}", "--name", name, *flags]
        recipe = Recipe(
            name=name, command=command, note=f"note of {name}", environment={"COLOUR": name}
        )
        cpus = sorted(os.sched_getaffinity(0))
        values = Values(free_port(), cpus, "model", Path("peers"), ["penstock"], Path())
        self.servers.append(ServerUnderTest(Entry(name, recipe), values, self.directory))

    def pid(self, server: ServerUnderTest) -> int:
        """The pid of the process that was started with the server's port; 0 when there is none."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if server.command and server.command == [word.decode() for word in words[:-1]]:
                return int(entry.parent.name)
        return 0

    def measure(
        self, parsed: argparse.Namespace, url: str, seed: int, tags: Mapping[str, object]
    ) -> dict[str, Any]:
        (server,) = (c.name for c in self.servers if c.url == url)
        self.calls.append((server, parsed.name, seed))
        if tags:
            assert tags["server"] == server
            self.states.append({c.name: state(self.pid(c)) for c in self.servers})
        Address(url).fetch("/v1/models")
        changed = {"partial": False, "completed": 5, **self.during(server, tags)}
        return {
            "duration": 1.0,
            "completed": changed["completed"],
            "failed": 0,
            "output_throughput": 100.0,
            "generated_texts": ["text"],
            "itls": [[0.12345678]],
            "penstock": {
                **tags,
                "partial": changed["partial"],
                "failure_examples": ["connect: no"],
            },
        }

    def run(self, rules: Rules = RULES) -> Path:
        """The directory of results."""
        results = self.directory / "results"
        facts = {"title": "T", "order": [c.name for c in self.servers]}
        journal = Journal(results, facts, {str(FAKE.parent): "$FAKES"})
        Comparison(self.servers, WORKLOADS, rules, self.measure, journal, self.said.append).run()
        return results


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Whatever a test does, nothing that it started runs afterwards."""
    made = Stage(tmp_path)
    yield made
    assert not [made.pid(server) for server in made.servers if made.pid(server)]


def turns(stage: Stage) -> list[tuple[str, str]]:
    return [(server, workload) for server, workload, _ in stage.calls if workload != "warm-up"]


def test_interleaved_runs_by_turns_while_the_others_are_stopped(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.add(name)
    stage.run()
    assert [server for server, _, _ in stage.calls[:3]] == ["a", "b", "c"]
    assert [workload for _, workload, _ in stage.calls[:3]] == ["warm-up"] * 3
    order = "abcbcabcacab"
    assert [server for server, _ in turns(stage)] == list(order)
    for server, states in zip(order, stage.states, strict=True):
        assert states.pop(server) in "RSD"
        assert set(states.values()) == {"T"}


def test_sequential_starts_one_server_when_the_one_before_has_ended(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.run(replace(RULES, order="sequential"))
    assert turns(stage) == [(server, name) for server in "ab" for name in ("W1", "W2", "W1", "W2")]
    for states in stage.states[:4]:
        assert states["b"] == ""
    for states in stage.states[4:]:
        assert states["a"] == ""


@pytest.mark.parametrize("order", ["interleaved", "sequential"])
def test_seeds_are_the_same_for_every_server_and_new_each_time(stage: Stage, order: str) -> None:
    stage.add("a")
    stage.add("b")
    stage.run(replace(RULES, order=order))
    seeds = {name: [seed for server, _, seed in stage.calls if server == name] for name in "ab"}
    assert seeds["a"] == seeds["b"]
    assert len(set(seeds["a"])) == 5


def test_the_files_say_who_and_what(stage: Stage) -> None:
    stage.add("a")
    results = stage.run()
    runs = load_results(results)
    assert {(r["penstock"]["workload"], r["penstock"]["repeat"]) for r in runs} == {
        ("W1", 1),
        ("W1", 2),
        ("W2", 1),
        ("W2", 2),
    }
    for run in runs:
        assert run["penstock"]["command"] == "compare"
        assert run["penstock"]["process"]["pss_mb"] > 0
        assert run["generated_texts"] == []
        assert run["itls"] == [[0.123457]]
    facts = load_comparison(results)
    assert facts["title"] == "T"
    assert facts["troubles"] == []
    server = facts["servers"]["a"]
    assert server["note"] == "note of a"
    assert server["environment"] == {"COLOUR": "a"}
    assert server["command"][1] == "$FAKES/fake_server.py"
    assert server["ready_s"] > 0
    with pytest.raises(InvalidValueError, match="without result files"):
        Journal(results, {}, {})


def test_a_server_that_dies_at_the_start_leaves_with_its_last_words(stage: Stage) -> None:
    stage.add("a")
    stage.add("b", "--die")
    results = stage.run()
    assert {server for server, _ in turns(stage)} == {"a"}
    (trouble,) = load_comparison(results)["troubles"]
    assert (
        "b left the comparison: before it was ready it ended with status 1; the end of" in trouble
    )
    assert "cannot allocate memory" in trouble


def test_a_command_that_is_not_there_is_a_trouble(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.servers[1].command = ["no-such-program"]
    (trouble,) = load_comparison(stage.run())["troubles"]
    assert "no-such-program" in trouble


def test_a_port_that_somebody_holds_is_not_measured(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(stage.servers[1].url.rpartition(":")[2])))
        other.listen()
        (trouble,) = load_comparison(stage.run())["troubles"]
    assert "something listens at http://127.0.0.1" in trouble


@pytest.mark.parametrize("order", ["interleaved", "sequential"])
def test_a_server_that_dies_in_a_run_leaves_and_its_run_does_not_count(
    stage: Stage, order: str
) -> None:
    stage.add("a")
    stage.add("b")

    def kill_b(server: str, tags: Mapping[str, object]) -> dict[str, Any]:
        if server == "b" and tags and (tags["workload"], tags["repeat"]) == ("W2", 1):
            pid = stage.pid(stage.servers[1])
            os.kill(pid, 9)
            # A zombie may have threads left: only then does a wait end.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return {}

    stage.during = kill_b
    results = stage.run(replace(RULES, order=order))
    (trouble,) = load_comparison(results)["troubles"]
    assert "b left the comparison: was killed by signal 9" in trouble
    found = summarise(load_results(results))
    assert found.cells[Workload("W1"), "a", "output_throughput"].n == 2
    assert found.cells[Workload("W1"), "b", "output_throughput"].n == 1
    assert (Workload("W2"), "b", "output_throughput") not in found.cells
    assert found.counts[Workload("W2"), "b"].partial == 1


def test_a_load_that_cannot_be_run_removes_the_server(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")

    def refuse(server: str, tags: Mapping[str, object]) -> dict[str, Any]:
        if server == "b" and tags:
            raise PenstockError("prompts are too long")
        return {}

    stage.during = refuse
    results = stage.run()
    assert load_comparison(results)["troubles"] == ["b left the comparison: prompts are too long"]
    assert [server for server, _ in turns(stage)] == ["a", "b", "a", "a", "a"]


def test_a_run_without_an_answer_is_told_and_kept(stage: Stage) -> None:
    stage.add("a")
    stage.during = lambda server, tags: {"completed": 0} if tags.get("workload") == "W1" else {}
    results = stage.run()
    assert load_comparison(results)["troubles"] == ["a, W1: no request completed: connect: no"] * 2
    assert len(load_results(results)) == 4


def test_an_interrupted_run_is_written_and_ends_everything(stage: Stage) -> None:
    stage.add("a")
    stage.add("b")
    stage.during = lambda server, tags: {"partial": tags.get("workload") == "W2"}
    with pytest.raises(KeyboardInterrupt):
        stage.run()
    runs = load_results(stage.directory / "results")
    assert [(run["penstock"]["workload"], run["penstock"]["partial"]) for run in runs] == [
        ("W1", False),
        ("W1", False),
        ("W2", True),
    ]


def test_an_interrupt_between_runs_ends_everything(stage: Stage) -> None:
    stage.add("a")

    def interrupt(server: str, tags: Mapping[str, object]) -> dict[str, Any]:
        raise KeyboardInterrupt

    stage.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        stage.run()


def test_the_least_disturbed_of_some_attempts_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.5, 0.2, 0.3, 0.01, 0.4, 0.05, 0.0, 0.1, 0.1, 0.1])

    class Scripted:
        def read(self) -> dict[str, float]:
            return {"server_cpu_s": 1.0, "foreign_share": next(shares)}

    monkeypatch.setattr(ServerUnderTest, "meter", lambda self: Scripted())
    stage.add("a")
    results = stage.run(replace(RULES, attempts=3, max_foreign=0.05))
    measured = [run["penstock"]["process"]["foreign_share"] for run in load_results(results)]
    assert sorted(measured) == [0.0, 0.01, 0.05, 0.2]
    seeds = [seed for _, workload, seed in stage.calls if workload != "warm-up"]
    assert len(seeds) == 3 + 1 + 2 + 1
    assert len(set(seeds)) == len(seeds)


def test_a_server_at_a_url_is_neither_stopped_nor_ended(stage: Stage, tmp_path: Path) -> None:
    stage.add("outside")
    (outside,) = stage.servers
    outside.start(60)
    try:
        values = Values(0, [0], "model", Path(), [], Path())
        stage.servers = [ServerUnderTest(Entry("url", None, outside.url), values, tmp_path)]
        results = stage.run()
        with urllib.request.urlopen(outside.url + "/v1/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "outside"
        assert all("process" not in run["penstock"] for run in load_results(results))
    finally:
        outside.end()
