"""benchmarks/gpu/run.py: what it does when parts do not end, fail or find something wrong."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.gpu import (  # noqa: E402
    cases,
    kernels,
    models,
    run,
    several,
    step_cases,
    tiers,
)
from benchmarks.gpu.driver import Driver, fill, open_backend, requests  # noqa: E402
from benchmarks.gpu.items import ABSENT, FAILURES, LEFT_OUT, Results, problems  # noqa: E402
from benchmarks.gpu.loads import FILES, workloads  # noqa: E402
from benchmarks.gpu.machine import Ceilings  # noqa: E402
from benchmarks.gpu.native import stand_in  # noqa: E402
from benchmarks.gpu.report import report  # noqa: E402
from benchmarks.gpu.shapes import TINY, write_checkpoint  # noqa: E402
from benchmarks.gpu.shares import Share  # noqa: E402
from benchmarks.gpu.sizes import BLOCK, DRY  # noqa: E402
from benchmarks.gpu.timing import Compiler, Timing  # noqa: E402
from penstock.core import Allocation  # noqa: E402
from tests.e2e.server import eventually  # noqa: E402
from tests.processes import is_alive  # noqa: E402

REPOSITORY = Path(__file__).parents[4]


def test_the_parts_end_within_ten_minutes_whatever_their_limits_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [1000.0]
    states: list[str] = []

    def part(_name: str, limit: float, *_: Any) -> dict[str, Any]:
        """Each takes all the time that it gets, and five seconds to be killed."""
        states.append("done" if limit >= run.LEAST_SECONDS else "no time left")
        clock[0] += limit + run.KILL_SECONDS if states[-1] == "done" else 0
        return {"state": states[-1], "seconds": 0.0, "error": "", "results": {}}

    monkeypatch.setattr(run, "run_part", part)
    monkeypatch.setattr(run, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path)])
    assert run.main() == 0
    assert 500 < clock[0] - 1000 <= 570
    assert states == ["done"] * len(run.PARTS)
    clock[0] = 1000.0
    states.clear()
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), "--minutes", "5"])
    assert run.main() == 0
    assert 250 < clock[0] - 1000 <= 285
    assert states == ["done"] * sum(part.short > 0 for part in run.PARTS)
    clock[0] = 1000.0
    states.clear()
    every = ["--parts", *[part.name for part in run.PARTS]]
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), "--minutes", "3", *every])
    assert run.main() == 1
    assert clock[0] - 1000 <= 171
    assert states == sorted(states)
    assert states[-1] == "no time left"
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert [each["state"] for each in parts.values()] == states
    assert "correctness: done" in capsys.readouterr().out


def test_time_that_a_part_leaves_goes_to_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, float] = {}

    def part(name: str, limit: float, *_: Any) -> dict[str, Any]:
        limits[name] = limit
        return {"state": "done", "seconds": 0.0, "error": "", "results": {}}

    monkeypatch.setattr(run, "run_part", part)
    monkeypatch.setattr(run, "time", types.SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path)])
    assert run.main() == 0
    assert all(limits[part.name] >= part.seconds for part in run.PARTS)
    assert limits[run.PARTS[-1].name] == 570 - run.KILL_SECONDS


def test_a_report_that_fails_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def part(*_: Any) -> dict[str, Any]:
        results = {"decode steps": [{"ms": 1.0}]}
        return {"state": "done", "seconds": 0.0, "error": "", "results": results}

    monkeypatch.setattr(run, "run_part", part)
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path)])
    assert run.main() == 0
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert list(parts) == [part.name for part in run.PARTS]
    assert "KeyError: 'rows'" in (tmp_path / "report.md").read_text()


def test_imports_count_against_the_time_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return types.SimpleNamespace(wait=lambda _: 0, pid=2**22 + 1)

    monkeypatch.setattr(run.subprocess, "Popen", popen)
    began = time.monotonic()
    run.run_part("machine", 60, tmp_path, ["--dry"])
    assert began + 60 <= float(commands[0][5]) <= time.monotonic() + 60


def test_a_part_that_fails_leaves_what_it_found_and_the_end_of_its_log(tmp_path: Path) -> None:
    found = run.run_part("no such model", 300, tmp_path, ["--dry"])
    assert found["state"] == "failed with 1"
    assert "KeyError: 'no such model'" in found["error"]
    assert [row["phase"] for row in found["results"]["start-up"]] == ["import torch"]
    text = report({"no such model": found}, dry=False)
    assert "|no such model|failed with 1|" in text
    assert "KeyError: 'no such model'" in text


def test_a_part_that_takes_too_long_is_stopped_with_its_ranks(tmp_path: Path) -> None:
    asleep = "import time; time.sleep(600)"
    parent = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '{asleep}'])"
    command = [sys.executable, "-c", f"{parent}.pid, flush=True); {asleep}"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert run.ended(process, 0.2) == "stopped after 0 s"
        assert process.returncode is not None
    eventually(lambda: not is_alive(child), "the end of the rank")


def test_failures_keep_their_status() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with subprocess.Popen(command, start_new_session=True) as process:
        assert run.ended(process, 60) == "failed with 3"


def test_an_item_that_fails_or_has_no_time_does_not_end_the_others(tmp_path: Path) -> None:
    results = Results(tmp_path / "part.json", time.monotonic() + 30)

    def fails() -> None:
        raise ValueError("no such shape")

    results.item("first", fails)
    results.item("second", lambda: results.note("second", 2), least=60)
    results.item("third", lambda: results.note("third", 3))
    found = json.loads((tmp_path / "part.json").read_text())
    assert found[FAILURES] == [{"item": "first", "error": "ValueError: no such shape"}]
    assert [row["item"] for row in found[LEFT_OUT]] == ["second"]
    assert found["third"] == 3
    assert problems(found) == "1 items failed, 1 items left out"
    assert problems({ABSENT: [{"item": "ranks"}], "third": 3}) == ""


def measured(tmp_path: Path, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The state of a part that ends with 0 and has found this."""

    def popen(command: list[str], **_: Any) -> Any:
        Path(command[4]).write_text(json.dumps(results))
        return types.SimpleNamespace(wait=lambda _: 0, pid=2**22 + 1)

    monkeypatch.setattr(run.subprocess, "Popen", popen)
    return str(run.run_part("machine", 60, tmp_path, ["--dry"])["state"])


def test_what_is_wrong_or_left_out_is_the_state_of_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured(tmp_path, {ABSENT: [{}]}, monkeypatch) == "done"
    assert measured(tmp_path, {LEFT_OUT: [{}]}, monkeypatch) == "1 items left out"
    assert measured(tmp_path, {FAILURES: [{}, {}]}, monkeypatch) == "2 items failed"


def test_a_kernel_that_is_wrong_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "part.json", time.monotonic() + 60)
    monkeypatch.setattr(kernels.cases, "error", lambda case, _: 0.5 * (case.name == "decode"))
    kernels.correctness(results, Timing(dry=True), Share(0, 1))
    assert [row["item"] for row in results.rows(FAILURES)] == ["decode"]
    assert [row["case"] for row in results.rows("cases") if not row["right"]] == ["decode"]
    # A replay that differs.
    results = Results(tmp_path / "part.json", time.monotonic() + 60)
    wet = types.SimpleNamespace(dry=False, dtype=torch.float32, device="cpu")
    build = dict(kernels.tiny(kernels.Maker(torch.float32)))["norm"]
    monkeypatch.setattr(kernels, "same_in_a_graph", lambda _: False)
    kernels._check(results, wet, "norm", build)  # type: ignore[arg-type]
    assert "graph has other bits" in results.rows(FAILURES)[0]["error"]


@pytest.mark.parametrize(("wrong", "right"), [(0, True), (2, True), (3, False)])
def test_a_few_draws_at_the_border_of_two_tokens_may_differ(wrong: int, right: bool) -> None:
    case = step_cases.draws(cases.Maker(torch.float32), 100, 40)
    assert case.may_differ == 0.0, "on the CPU all are the reference's"
    case.may_differ = 0.02

    def spoiled(*args: Any) -> torch.Tensor:
        tokens = case.reference(*args)
        tokens[:wrong] += 1
        return tokens

    case.launch = spoiled
    assert (cases.error(case, torch.float32) == 0.0) is right


def test_what_stays_in_the_cache_has_no_share_of_the_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "part.json", time.monotonic() + 60)
    timing: Any = types.SimpleNamespace(dry=True, cached=1 << 20, of=lambda _: 1e-3)
    make = cases.Maker(torch.float32)
    for rows in (16, 4096):
        build = lambda rows=rows: next(cases.norms(make, rows, 64))  # noqa: E731
        kernels._speed(results, timing, Ceilings(1e9, 1e12), f"norm {rows}", build)
    small, large = results.rows("speeds")
    assert small["of_memory"] is None
    assert large["of_memory"] == pytest.approx(2 * 4096 * 64 * 4 / 1e-3 / 1e9)


@pytest.mark.slow
def test_the_hosts_time_is_measured_without_a_gpu() -> None:
    """Parts of a decode step in a graph, and launches of steps with prompts."""
    script = REPOSITORY / "benchmarks/gpu/host.py"
    words = ["--batches", "4", "--steps", "5", "--repeats", "1", "--only", "4, plain"]
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4, plain: " in done.stdout
    assert "draw=0 " in done.stdout, "tokens are drawn in the graph"
    assert "| Qwen3-0.6B | 128 + 64 |" in done.stdout


def test_a_graph_that_draws_other_tokens_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared are steps with whole block tables, which a graph reads too."""
    results = Results(tmp_path / "part.json", time.monotonic() + 60)
    slots = types.SimpleNamespace(tables=lambda _, blocks: blocks)
    graphs = types.SimpleNamespace(decodes="graphs", prompts="prompts")
    backend = types.SimpleNamespace(_graphs=graphs, _on_device=slots)
    model: Any = types.SimpleNamespace(driver=types.SimpleNamespace(backend=backend))
    seen: list[tuple[object, object]] = []

    def one(_results: Any, _model: Any, **_: Any) -> list[int]:
        seen.append((graphs.decodes, slots.tables(None, 7)))
        return [1, 2, 3] if graphs.decodes else [1, 2, 4]

    monkeypatch.setattr(models, "_single", one)
    models.single(results, model)
    assert seen == [("graphs", 7), (None, 7), (None, None), ("graphs", None)]
    assert "from token 2 on" in results.rows(FAILURES)[0]["error"]
    assert (graphs.decodes, slots.tables(None, 7)) == ("graphs", 7)


@pytest.mark.parametrize("there", [0, 1])
def test_a_machine_without_several_gpus_is_no_failure(
    there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    results = Results(tmp_path / "part.json", time.monotonic() + 60)
    several.measure(results, types.SimpleNamespace(dry=False), Ceilings())  # type: ignore[arg-type]
    assert results.rows(ABSENT)[0]["reason"].endswith(f"there is {there}")
    assert not results.rows(FAILURES)


def test_workloads_are_those_that_servers_are_compared_with() -> None:
    found = workloads()
    assert list(found)[2:7] == ["W1", "W2", "W3", "W4", "W5"]
    assert (found["W3"].prompt, found["W3"].output, found["W3"].concurrency) == (256, 128, 32)
    assert (found["W4"].prompt, found["W4"].output, found["W4"].count) == (2048, 1, 8)
    assert (found["W5"].prefix, found["W5"].prompt) == (1024, 128)
    assert (found["C256"].prompt, found["C256"].output, found["C256"].concurrency) == (
        1024,
        256,
        256,
    )
    assert (found["rate20"].concurrency, found["rate20"].rate) == (None, 20.0)
    lines = [line for file in FILES for line in file.read_text().splitlines()]
    written = {
        name: flags.split() for name, _, flags in (line.partition(": serve") for line in lines)
    }
    for name in list(found)[2:]:
        assert sorted(found[name].words) == sorted(written[name]), "the flags are those of its line"


def test_a_shared_prefix_is_computed_once_and_changes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Imported with the extension itself, which other tests need.
    importlib.import_module("penstock.scheduler")
    monkeypatch.setitem(sys.modules, "penstock._native", None)
    stand_in()
    write_checkpoint(tmp_path, TINY, DRY.longest)
    backend = open_backend(tmp_path, DRY)
    torch.manual_seed(0)
    fill(backend._weights)
    backend.allocate(Allocation((16,)))
    driver = Driver(backend, 16, DRY)
    lengths = [(5 + at, 6) for at in range(5)]
    asked = requests(lengths, TINY.vocabulary, prefix=BLOCK)
    tokens, computed = [], []
    submit = backend.submit
    monkeypatch.setattr(
        backend, "submit", lambda plan: computed.append(len(plan.tokens)) or submit(plan)
    )
    for prefixes in (True, False):
        computed.clear()
        driver.run(asked, 1, prefixes=prefixes)
        tokens.append(driver.tokens)
        assert sum(computed) == sum(p + n - 1 for p, n in lengths) + BLOCK * (
            1 if prefixes else len(lengths)
        )
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 1
    backend.close()


class Files:
    """A kvikio that moves bytes by POSIX calls."""

    def __init__(self, *, spoils: bool = False) -> None:
        self.modes: list[str] = []
        self.defaults = types.SimpleNamespace(set=lambda _, mode: self.modes.append(mode))
        self.CompatMode = types.SimpleNamespace(ON="on", OFF="off")
        self._spoils = spoils

    def CuFile(self, path: str, flags: str) -> Any:  # noqa: N802 - kvikio's name
        spoils = self._spoils

        class Opened:
            def __enter__(self) -> Opened:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def pwrite(self, memory: Any, size: int) -> Any:
                Path(path).write_bytes(memory[:size].tobytes())
                return types.SimpleNamespace(get=lambda: size)

            def pread(self, memory: Any, size: int) -> Any:
                memory[:] = bytearray(Path(path).read_bytes())
                memory[0] ^= spoils
                return types.SimpleNamespace(get=lambda: size)

        return Opened()


@pytest.mark.parametrize("spoils", [False, True])
def test_blocks_move_by_kvikio_where_it_is_installed(
    spoils: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Files(spoils=spoils)
    monkeypatch.setitem(sys.modules, "kvikio", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "kvikio.defaults", fake.defaults)  # type: ignore[arg-type]
    results = Results(tmp_path / "tiers.json", time.monotonic() + 60)
    tiers.measure(results, Timing(dry=True))
    found = {row["way"]: row["right"] for row in results.rows("copies")}
    assert found["kvikio, compatibility mode OFF, load"] is not spoils
    assert found["RAM tier, LOAD"] is True
    assert found["file, page cache"] is True
    assert fake.modes == ["off", "on"]
    wrong = [row["item"] for row in results.rows(FAILURES)]
    assert wrong == [f"kvikio, compatibility mode {mode}, load" for mode in ("OFF", "ON")] * spoils


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (RuntimeError("no driver"), ["ON"]),
        (torch.OutOfMemoryError("CUDA out of memory"), ["OFF", "ON"]),
    ],
)
def test_only_a_missing_driver_of_kvikio_is_no_failure(
    error: Exception, failed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise error

    fake = Files()
    monkeypatch.setitem(sys.modules, "kvikio", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "kvikio.defaults", fake.defaults)  # type: ignore[arg-type]
    monkeypatch.setattr(tiers, "_moved", full)
    results = Results(tmp_path / "tiers.json", time.monotonic() + 60)
    wet: Any = types.SimpleNamespace(dry=False, wait=lambda: None)
    for mode in ("OFF", "ON"):
        words = (results, wet, torch.zeros(8), tmp_path / "file", mode, mode)
        results.item(mode, lambda words=words: tiers._kvikio(*words))
    assert [row["item"] for row in results.rows(FAILURES)] == failed
    assert len(results.rows(ABSENT)) == 2 - len(failed)


def test_goals_are_compared_with_what_was_found() -> None:
    speeds = [
        {"case": "decode 256, 32/8, splits None", "of_memory": 0.81},
        {"case": "decode 256, 32/4, splits None", "of_memory": 0.79},
        # Not as they are served, or from the cache.
        {"case": "decode 256, 32/8, splits 1", "of_memory": 0.95},
        {"case": "decode 256, 16/8, splits None", "of_memory": None},
    ]
    part = {"state": "done", "seconds": 1.0, "error": "", "results": {"speeds": speeds}}
    text = report({"kernels": part}, dry=False)
    assert "decode attention, least share of the memory bandwidth|0.80|0.79|False|" in text
    results = {
        "decode steps": [{"rows": 64, "of_memory": 0.72}, {"rows": 128, "ms": "no room"}],
        "prefill steps": [{"of_gemm": 0.5}],
        "offline": [{"of_ceiling": 0.61}],
        "first token after s": 11.0,
    }
    part = {"state": "done", "seconds": 1.0, "error": "", "results": results}
    text = report({"Qwen3-8B": part}, dry=False)
    assert "decode steps of 64, share of the memory bandwidth|0.70|0.72|True|" in text
    assert "prefill, share of the rate of a product|0.60|0.50|False|" in text
    assert "seconds to the first token|10.00|11.00|False|" in text


def test_what_triton_compiles_is_told_from_what_its_cache_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    knobs = pytest.importorskip("triton", reason="Triton is not installed").knobs
    monkeypatch.setattr(knobs.compilation, "listener", None)
    compiler = Compiler()
    times = knobs.CompileTimes(10_000, [("ttir", 500_000), ("cubin", 980_000)], 10_000)
    for hit in (False, True):
        knobs.compilation.listener(
            src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit
        )
    assert compiler.seconds == 1.5
