"""`penstock verify --watch`: passes over a fixture node whose files change between them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.main import main
from penstock.core import PenstockError
from penstock_ops.verify.changes import Change, by_device, changes, retained
from penstock_ops.verify.checks.check import NodeCheck
from penstock_ops.verify.checks.registry import CHECKS
from penstock_ops.verify.evidence import Snapshot
from penstock_ops.verify.finding import Bound, Finding, Layer, Status
from penstock_ops.verify.reports.exposition import exposition, replace_file
from penstock_ops.verify.sources import Source, run_command
from penstock_ops.verify.verdict import EXIT_STATUS, Outcome
from penstock_ops.verify.watch import Clock, Watch
from tests.e2e.prometheus import program
from tests.verify.node import GPUS, NEEDS, Tree, healthy

LIGHT = tuple(check for check in CHECKS if check.runs_beside_server)
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
DOWNED = f"{PORT}/counters/link_downed"
INTERVAL = 60.0
Step = Callable[[Tree], object]


@dataclass
class Passes:
    """Passes over `tree`. After each, a step changes it, and time goes on by INTERVAL; after the
    last one Ctrl-C ends the watch.
    """

    tree: Tree
    steps: list[Step]
    metrics: Path | None = None
    time: float = 1_000_000.0
    pages: list[str] = field(default_factory=list)
    checks: Sequence[NodeCheck] = LIGHT

    def read(self, _sources: Sequence[Source]) -> Snapshot:
        return self.tree.snapshot()

    def pause(self, seconds: float) -> None:
        assert seconds == INTERVAL
        self.time += seconds
        if self.metrics:
            self.pages.append(self.metrics.read_text())
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)(self.tree)

    def run(self) -> int:
        clock = Clock(lambda: self.time, lambda: self.time, self.pause)
        return Watch(self.checks, NEEDS, INTERVAL, self.metrics, self.read, clock).run()


def nothing(_tree: Tree) -> None:
    return


def ecc(old: int, new: int) -> Step:
    def step(tree: Tree) -> None:
        element = "<dram_uncorrectable>"
        tree.command("nvidia-smi", f"{element}{old}", f"{element}{new}")

    return step


def port(state: str, physical: str) -> Step:
    def step(tree: Tree) -> None:
        tree.write(f"{PORT}/state", f"{state}\n")
        tree.write(f"{PORT}/phys_state", f"{physical}\n")

    return step


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Printed lines without their dates."""
    printed = capsys.readouterr().out.splitlines()
    assert all(re.match(r"1970-01-12T\d\d:\d\d:\d\dZ ", line) for line in printed)
    return [line.partition(" ")[2] for line in printed]


def test_a_healthy_node_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Passes(healthy(tmp_path), [nothing, nothing]).run() == EXIT_STATUS[Outcome.HOLDS]
    (line,) = lines(capsys)
    assert re.fullmatch(r"plan\.yaml \(DeepSeek-R1\): holds; \d+ pass", line)


def test_a_memory_error_appears_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = healthy(tmp_path)
    assert Passes(tree, [ecc(0, 3), nothing, ecc(3, 4)]).run() == 0
    (line,) = lines(capsys)[1:]
    assert line == (
        f"ecc {GPUS[0]}: pass -> warn: 3 uncorrectable errors since the driver was loaded; "
        "remedy: reset the GPU; replace it if errors return"
    )


def test_a_link_goes_down_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def both_down(tree: Tree) -> None:
        port("1: DOWN", "2: Polling")(tree)
        tree.write("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")

    tree = healthy(tmp_path)
    passes = Passes(tree, [both_down], tmp_path / "x.prom")
    assert passes.run() == EXIT_STATUS[Outcome.DOES_NOT_HOLD]
    down = lines(capsys)[1:]
    assert [line.partition(";")[0] for line in down if line.startswith("hca:")] == [
        "hca: pass -> fail: active ports of RDMA adapters: 1 ports (needed at least 2 ports)"
    ]
    assert any(line.startswith("hca mlx5_0/1: pass -> warn: DOWN, Polling") for line in down)
    passes = Passes(tree, [port("4: ACTIVE", "5: LinkUp")])
    assert passes.run() == 0
    back = lines(capsys)
    assert "does not hold" in back[0]
    assert "fail hca" in back[0]
    assert "hca mlx5_0/1: warn -> pass: rate of the port: 400 Gb/s" in " ".join(back[1:])


def test_a_clock_recovers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = healthy(tmp_path)
    tree.command("host", '"clock_synchronised": 1.0', '"clock_synchronised": 0.0')

    def recover(tree: Tree) -> None:
        tree.command("host", '"clock_synchronised": 0.0', '"clock_synchronised": 1.0')

    Passes(tree, [recover]).run()
    first, change = lines(capsys)
    assert first.endswith(": warn clock")
    assert change.startswith("clock: warn -> pass: maximum error of the clock: 0.5 ms (")


def test_growth_between_passes_is_seen_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = healthy(tmp_path / "node")
    metrics = tmp_path / "verify.prom"
    steps: list[Step] = [lambda tree: tree.write(DOWNED, "5\n"), nothing]
    passes = Passes(tree, steps, metrics)
    assert passes.run() == 0
    began, ended = lines(capsys)[1:]
    assert began == (
        "hca-errors mlx5_0/1: absent -> fail: link_downed grew by 2 in 60 s; remedy: clean or "
        "replace cable and transceiver; look at the switch's port"
    )
    assert ended == "hca-errors mlx5_0/1: fail -> absent"
    sample = 'penstock_verify_status{check="hca-errors",device="mlx5_0/1",layer="fabric"} 3\n'
    assert [sample in page for page in passes.pages] == [False, True, False]


def test_counters_that_begin_anew_are_unknown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Passes(healthy(tmp_path), [lambda tree: tree.write(DOWNED, "0\n"), nothing]).run()
    seen = [line.partition(":")[2][:18] for line in lines(capsys)[1:]]
    assert seen == [" pass -> unknown: ", " unknown -> pass: "]


def test_a_tool_that_fails_once_hides_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = healthy(tmp_path)
    good = tree.commands["nvidia-smi"]

    def back(tree: Tree) -> None:
        tree.commands["nvidia-smi"] = good.replace("<dram_uncorrectable>0", "<dram_uncorrectable>1")

    Passes(tree, [lambda tree: tree.commands.update({"nvidia-smi": "half"}), back]).run()
    of_ecc = [line for line in lines(capsys)[1:] if line.startswith("ecc")]
    assert [line.partition(": ")[2][:16] for line in of_ecc] == [
        "absent -> unknow", "pass -> warn: 1 ", "pass -> warn: 1 ", "unknown -> absen",
    ]  # fmt: skip


def finding(status: Status, **changed: Any) -> Finding:
    row = Finding("ecc", Layer.DEVICE, "n", "d", status, "s", remedy="r")
    return replace(row, **changed)


FINDINGS = st.lists(
    st.builds(
        finding,
        st.sampled_from(Status),
        check=st.sampled_from(["ecc", "hca"]),
        device=st.sampled_from(["", "a", "b"]),
    ),
    max_size=8,
)


@settings(max_examples=50)
@given(FINDINGS, FINDINGS)
def test_each_new_fault_has_a_line_and_no_state_has_two(
    before: list[Finding], now: list[Finding]
) -> None:
    known = by_device(before)
    kept = retained(known, by_device(now))
    found = list(changes(known, kept))
    ends = [each.now or each.before for each in found]
    keys = [(end.check, end.device) for end in ends if end is not None]
    assert len(keys) == len(set(keys)) == len(found)
    faults = {(each.check, each.device) for each in now if each.status is Status.FAIL}
    old = {(each.check, each.device) for each in before if each.status is Status.FAIL}
    assert faults - old <= set(keys)
    assert list(changes(kept, kept)) == []


def test_lines_have_no_control_characters() -> None:
    device = 'mlx5\n2026 ok\x1b[2J"\udc80'
    line = Change(None, finding(Status.FAIL, device=device, summary="a\rb", remedy="\n")).line()
    assert line == ('ecc mlx5\\n2026 ok\\x1b[2J"\\udc80: absent -> fail: a\\rb; remedy: \\n')


Sample = tuple[str, frozenset[tuple[str, str]], str]


def parsed(folder: Path, text: str) -> list[Sample]:
    """Name, labels and value of all samples as Prometheus' own parser reads them: promtool imports
    the page, with a time for each sample, into a database, and prints it.
    """
    lint = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr
    rows = [line if line.startswith("#") else f"{line} 1700000000" for line in text.splitlines()]
    page, blocks = folder / "page", folder / "blocks"
    page.write_text("\n".join([*rows, "# EOF\n"]), encoding="utf-8")
    tsdb = [program("promtool"), "tsdb"]
    subprocess.run([*tsdb, "create-blocks-from", "openmetrics", page, blocks], check=True)
    (blocks / "wal").mkdir()  # which the dump expects
    dump = subprocess.run([*tsdb, "dump", blocks], check=True, capture_output=True, text=True)
    found: list[Sample] = []
    for line in dump.stdout.splitlines():
        labels, value, _time = line.rsplit(" ", 2)
        pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', labels)
        named = {name: json.loads(text) for name, text in pairs}
        name = named.pop("__name__")
        found.append((name, frozenset(named.items()), value))
    return found


def test_prometheus_reads_back_what_was_found(tmp_path: Path) -> None:
    device = 'a"b\\c\nd}, e="\x1b\udc80ö'
    rate = Bound(1.0, None, "GB/s")
    rows = [
        finding(Status.PASS, device=device, measured=2.5, bound=rate),
        finding(Status.FAIL, device=device, measured=0.5, bound=rate),
        finding(Status.WARN, check="limits", device="", measured=float("inf"), bound=rate),
        finding(Status.UNKNOWN, check="xid", device="\\n"),
        finding(Status.UNKNOWN, check="xid", device="\n"),
        finding(Status.SKIPPED, check="acs"),
    ]
    samples = parsed(tmp_path, exposition(rows, ended=1764288000.25, interval=60.0))
    shown = 'a"b\\c\\nd}, e="\\x1b\\udc80ö'

    def labels(check: str, device: str, **more: str) -> frozenset[tuple[str, str]]:
        own = {"check": check, "device": device, **more}
        return frozenset((name, value) for name, value in own.items() if value)

    name = "penstock_verify"
    assert sorted(samples, key=str) == sorted(
        [
            (f"{name}_status", labels("ecc", shown, layer="device"), "3"),
            (f"{name}_status", labels("limits", "", layer="device"), "1"),
            (f"{name}_status", labels("xid", "\\n", layer="device"), "2"),
            (f"{name}_measured", labels("ecc", shown, unit="GB/s"), "0.5"),
            (f"{name}_measured", labels("limits", "", unit="GB/s"), "+Inf"),
            (f"{name}_last_run_timestamp_seconds", frozenset(), "1.76428800025e+09"),
            (f"{name}_interval_seconds", frozenset(), "60"),
        ],
        key=str,
    )


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=6))
def test_any_device_name_keeps_one_line_for_each_sample(devices: list[str]) -> None:
    rows = [finding(Status.FAIL, device=device) for device in devices]
    page = exposition(rows, ended=1.0, interval=5.0)
    page.encode("utf-8")
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    form = re.compile(r'penstock_verify_\w+({(\w+="([^"\\\n]|\\["\\n])*",?)+})? \S+')
    assert all(form.fullmatch(line) for line in samples)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "directory.prom").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("absent/x.prom", "directory.prom", "file/x.prom"):
        with pytest.raises(PenstockError, match=f"cannot write {tmp_path / name}: "):
            Passes(healthy(tmp_path / name.replace("/", "-")), [], tmp_path / name).run()
    assert {each.name for each in tmp_path.iterdir() if each.is_file()} == {"file"}


def test_an_interrupted_write_leaves_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.prom"
    replace_file(target, "old\n")

    def interrupt(_self: Path, _target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_file(target, "new\n")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("x.prom", "old\n")]


def test_sigterm_ends_it_between_passes_and_inside_one(tmp_path: Path) -> None:
    previous = signal.getsignal(signal.SIGTERM)

    def terminate(*_: object) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)

    def nowhere(_seconds: float) -> None:
        raise AssertionError

    passes = Passes(healthy(tmp_path), [terminate])
    assert passes.run() == 0
    watch = Watch(LIGHT, NEEDS, INTERVAL, read=terminate, clock=Clock(pause=nowhere))
    assert watch.run() == EXIT_STATUS[Outcome.NOT_PROVEN]
    assert signal.getsignal(signal.SIGTERM) is previous


def test_ctrl_c_ends_the_command_that_runs(tmp_path: Path) -> None:
    """The command sends Ctrl-C to this process, and would write its file later."""
    late = tmp_path / "pid"
    script = (
        "import os, signal, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    )
    with pytest.raises(KeyboardInterrupt):
        run_command((sys.executable, "-c", script, str(late), "-"), 60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(late.read_text()), 0)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--watch", "1"], 2, "expected 5 to 3600 seconds"),
        (["--watch", "nan"], 2, "expected 5 to 3600 seconds"),
        (["--watch", "1e9"], 2, "expected 5 to 3600 seconds"),
        (["--watch", "5", "--metrics", "verify.txt"], 2, "ends in .prom"),
        (["--metrics", "verify.prom"], 1, "--watch"),
        (["--watch", "5", "host"], 1, "this machine"),
        (["--watch", "5", "--nnodes", "2"], 1, "this machine"),
        (["--watch", "5", "--json", "-"], 1, "--json"),
        (["--watch", "5", "--checks", "ecc,storage,memory-rate"], 2, "memory-rate,storage"),
    ],
)
def test_flags_that_do_not_fit(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *words]) == status
    assert said in capsys.readouterr().err


def test_checks_that_disturb_a_server_are_left_out() -> None:
    left_out = {check.name for check in CHECKS} - {check.name for check in LIGHT}
    load = {"memory-rate", "storage", "kv-stores", "copy-rate", "all-reduce-rate"}
    assert left_out == {*load, "shared-memory"}


def test_this_machine_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    metrics = tmp_path / "verify.prom"
    words = ["verify", "--checks", "limits,huge-pages", "--watch", "5", "--metrics", str(metrics)]
    assert main(words) in EXIT_STATUS.values()
    assert pauses == [5.0, 5.0]
    assert capsys.readouterr().out.count("\n") == 1
    assert 'penstock_verify_status{check="limits"' in metrics.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["verify.prom"]
