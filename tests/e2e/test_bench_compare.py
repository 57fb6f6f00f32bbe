"""`penstock bench compare` as a command: servers are started, loaded, compared and ended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.machine import free_port
from penstock_lab.bench.compare.summary import Workload, summarise
from tests.bench.results import load_comparison, load_results
from tests.e2e.server import eventually
from tests.limits import HANG

FAKE = Path(__file__).parents[1] / "bench/compare/fake_server.py"
LOAD = (
    "serve --random-input-len 8 --random-output-len 4 --max-concurrency 2 --prompt-ids "
    "--vocab-size 1000"
)
QUICK = ("--quiet-wait", "0", "--attempts", "1", "--disable-tqdm")


class Arena:
    """Fake servers, the command line that compares them, and what it leaves."""

    def __init__(self, directory: Path) -> None:
        self.results = directory / "results"
        self.flags: list[str] = []
        self.mark = str(directory / "fake.py")
        Path(self.mark).write_text(FAKE.read_text())

    def add(self, name: str, *flags: str) -> None:
        start = shlex.join([sys.executable, self.mark, "{port}", "--name", name, *flags])
        self.flags += [
            "--server",
            f"{name}=http://127.0.0.1:{free_port()}",
            "--start",
            f"{name}={start}",
        ]

    def start(self, *flags: str, prompts: int = 6) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock", "bench", "compare", *self.flags, *QUICK]
        command += [
            "--warm-up",
            f"{LOAD} --num-prompts 1",
            "--workload",
            f"W1: {LOAD} --num-prompts {prompts}",
        ]
        command += ["--result-dir", str(self.results), *flags]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *flags: str, prompts: int = 6) -> tuple[int, str]:
        """Exit status and output."""
        process = self.start(*flags, prompts=prompts)
        output, _ = process.communicate(timeout=HANG)
        return process.returncode, output

    def left(self) -> list[str]:
        """Command lines of fake servers that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found.append(path.read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return [line for line in found if self.mark in line and " bench compare " not in line]


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena(tmp_path)
    yield made
    assert not made.left()


@pytest.mark.parametrize("order", ["interleaved", "sequential"])
def test_servers_are_compared(arena: Arena, order: str) -> None:
    # Tokens that arrive in one read take no time, and a latency of 0 counts as missing.
    arena.add("a", "--pause", "0.002")
    arena.add("b", "--pause", "0.1")
    status, output = arena.run("--repeats", "2", "--order", order, "--baseline", "b")
    assert status == 0, output
    found = summarise(load_results(arena.results), "b")
    a, b = found.row(Workload("W1"), "median_tpot_ms")
    assert a
    assert b
    assert (a.n, b.n) == (2, 2)
    assert b.low >= 75
    assert a.ratio is not None
    assert a.ratio < 1
    assert "divided by b" in output
    assert "0 of 12" in output
    facts = load_comparison(arena.results)
    assert facts["order"] == ["a", "b"]
    assert facts["servers"]["a"]["command"][3:] == ["--name", "a", "--pause", "0.002"]


def test_the_same_prompts_go_to_every_server(arena: Arena) -> None:
    arena.add("a")
    arena.add("b")
    cpu = str(min(os.sched_getaffinity(0)))
    status, output = arena.run("--repeats", "2", "--server-cpus", cpu, "--client-cpus", cpu)
    assert status == 0, output
    seeds: dict[tuple[str, int], int] = {
        (run["penstock"]["server"], run["penstock"]["repeat"]): run["penstock"]["seed"]
        for run in load_results(arena.results)
    }
    assert seeds["a", 1] == seeds["b", 1] != seeds["a", 2] == seeds["b", 2]


def test_answers_that_end_early_are_failures_that_are_shown(arena: Arena) -> None:
    arena.add("a")
    arena.add("b", "--tokens", "2")
    status, output = arena.run("--repeats", "1")
    assert status == 1, output
    assert "6 of 6 (short 6)" in output
    assert "no request completed" in output
    (run,) = (run for run in load_results(arena.results) if run["penstock"]["server"] == "b")
    assert run["penstock"]["failures"] == {"short": 6}


def test_a_server_that_dies_leaves_the_others(arena: Arena) -> None:
    arena.add("a")
    arena.add("b", "--die-after", "4")
    status, output = arena.run("--repeats", "2")
    assert status == 1, output
    assert "b left the comparison: was killed by signal 9" in output
    found = summarise(load_results(arena.results))
    assert found.cells[Workload("W1"), "a", "output_throughput"].n == 2
    assert found.counts[Workload("W1"), "b"].partial == 1


def test_without_a_server_there_is_an_error(arena: Arena) -> None:
    arena.add("a", "--die")
    status, output = arena.run()
    assert status == 1
    assert (
        "no server could be measured: a left the comparison: before it was ready it ended" in output
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_there_is_and_ends_what_was_started(
    arena: Arena, number: signal.Signals
) -> None:
    arena.add("a")
    arena.add("b", "--pause", "0.5")
    process = arena.start("--repeats", "1", prompts=100)
    eventually(
        lambda: (arena.results / "a-W1-1.json").exists() or process.poll() is not None, "a's run"
    )
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 130, output
    partial = {
        run["penstock"]["server"]: run["penstock"]["partial"] for run in load_results(arena.results)
    }
    assert partial["a"] is False
    assert partial.get("b", True) is True


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--baseline", "c"), "--baseline is 'c'"),
        (("--only", "W2"), "names among W1"),
        (("--server", "no-such-recipe"), "no recipe 'no-such-recipe'"),
        (("--server-cpus", "9999"), "CPUs among"),
        (("--workload", "W3: unknown"), "serve"),
    ],
)
def test_wrong_arguments_are_found_before_anything_starts(
    arena: Arena, flags: tuple[str, str], said: str
) -> None:
    arena.add("a")
    status, output = arena.run(*flags)
    assert status in (1, 2), output
    assert said in output
    assert not arena.results.exists()


def test_penstock_split_and_in_one_process(arena: Arena, model_file: Path) -> None:
    arena.flags += [
        "--server",
        "penstock",
        "--server",
        "penstock-inprocess",
        "--model",
        str(model_file),
    ]
    arena.flags += [
        "--args",
        "penstock=--max-model-len 512",
        "--args",
        "penstock-inprocess=--max-model-len 512",
    ]
    status, output = arena.run("--repeats", "1")
    assert status == 0, output
    for run in load_results(arena.results):
        assert run["completed"] == 6
        assert run["penstock"]["usage"]["prompt_mismatch"] == 0
        assert run["penstock"]["process"]["pss_mb"] > 50
    servers = load_comparison(arena.results)["servers"]
    assert "--no-engine-process" in servers["penstock-inprocess"]["command"]
    assert servers["penstock"]["version"].startswith("penstock ")
    assert str(Path.home()) not in json.dumps(servers)
