"""The parts of benchmarks/gpu/run.py that measure the product's server, without one that serves."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import plot, product, report, room, run, server, weights
from benchmarks.gpu.compared import PUBLISHED, beside_published
from benchmarks.gpu.items import ABSENT, LEFT_OUT, Results, problems
from benchmarks.gpu.loads import ALONE, FIRST
from benchmarks.gpu.product import Product
from benchmarks.gpu.shapes import TINY, TINY_EXPERTS
from penstock.model import load_model
from tests.limits import HANG


def part(**results: Any) -> dict[str, Any]:
    return {"state": "done", "seconds": 1.0, "error": "", "results": results}


def a_product(tmp_path: Path, main: str) -> Product:
    """A package `penstock` whose program this is."""
    package = tmp_path / "made/penstock"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(main)
    return Product("a test", str(package.parent), package)


def test_without_the_extension_the_report_says_so_first_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "serve-Qwen3-8B.json"
    monkeypatch.setattr(server, "find", lambda _: None)
    end = str(time.monotonic() + 60)
    monkeypatch.setattr(sys, "argv", ["server", "serve-Qwen3-8B", str(out), end])
    server.main()
    found = json.loads(out.read_text())
    assert problems(found) == ""
    text = report.report({"serve-Qwen3-8B": part(**found)}, dry=False)
    assert text.splitlines()[2].startswith("**The product's server was not measured: no wheel was")
    assert "(serve-Qwen3-8B).**" in text


def test_a_server_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    made = a_product(tmp_path, "import sys; print('no such device'); sys.exit(3)")
    results = Results(tmp_path / "part.json", time.monotonic() + 60)
    log = tmp_path / "server.log"
    with (
        pytest.raises(RuntimeError, match=r"ended with 3; the end of its log:\nno such device"),
        server.served(made, ["serve", "model"], tmp_path, log, results),
    ):
        pass


def test_a_server_that_does_not_get_ready_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = a_product(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    monkeypatch.setattr(server, "STOP_S", 2.0)
    results = Results(tmp_path / "part.json", time.monotonic() + 12)
    log = tmp_path / "server.log"
    with (
        pytest.raises(RuntimeError, match=r"not ready after \d+ s"),
        server.served(made, ["serve", "model"], tmp_path, log, results),
    ):
        pass
    assert not Path(f"/proc/{int(log.read_text())}").exists()


CLIENT = """
import json, sys, time
words = dict(zip(sys.argv, sys.argv[1:]))
if words["--num-prompts"] == "16":
    time.sleep(600)
found = {name: 1.0 for name in %r}
failures = {"connection": 1}
found |= {"completed": 0, "penstock": {"failures": failures}}
open(words["--result-dir"] + "/" + words["--result-filename"], "w").write(json.dumps(found))
"""
COLUMNS = ("duration", "output_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms")
COLUMNS += ("mean_tpot_ms", "p99_itl_ms")


def test_requests_that_fail_and_loads_that_do_not_end_are_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = a_product(tmp_path, CLIENT % (COLUMNS,))
    monkeypatch.setattr(server, "STOP_S", 2.0)
    results = Results(tmp_path / "part.json", time.monotonic() + HANG)
    results.row(server.STARTS, ready_s=2.0)
    run = server.Run(results, made, tmp_path, 256, True, tmp_path, tmp_path)
    there: Any = type("Server", (), {"url": "http://127.0.0.1:1", "check": lambda _: None})()
    run._run(server.WARM, there, FIRST)
    results._end = time.monotonic() + 4
    run._run(server.WARM, there, ALONE)
    found = json.loads((tmp_path / "part.json").read_text())
    assert "0 of 1 requests have succeeded: {'connection': 1}" in found["failures"][0]["error"]
    assert [row["item"] for row in found[LEFT_OUT]] == [ALONE.name]
    assert problems(found) == "1 items failed, 1 items left out"


def test_what_a_killed_part_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MEMORY", tmp_path)
    for owner in (12, 123):
        (tmp_path / f"penstock-gpu-{owner}-left").mkdir()
        (tmp_path / f"penstock-gpu-{owner}-left/model.safetensors").write_text("numbers")
    room.sweep(12)
    assert [path.name for path in tmp_path.iterdir()] == ["penstock-gpu-123-left"]
    with room.room_for(1 << 20, 7) as directory:
        assert directory.parent == tmp_path
    assert len(list(tmp_path.iterdir())) == 1


def test_a_checkpoint_without_room_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(room.NoRoomError, match="1000 GB"), room.room_for(10**12, 7):
        pass


@pytest.mark.parametrize("limit", [1 << 30, 20_000])
def test_a_random_checkpoint_has_all_tensors(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SHARD", limit)
    monkeypatch.setattr(weights, "PIECE", 1000)
    weights.write_random(tmp_path, TINY_EXPERTS, 64, 5000)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == (limit < 1 << 30)
    tensors = dict(tensor for file in files for tensor in tensors_of(file))
    wanted = dict(TINY_EXPERTS.tensors())
    assert tensors.keys() == wanted.keys()
    drawn = weights._drawn(5000)
    for name, bits in tensors.items():
        assert bits.size == np.prod(wanted[name])
        if len(wanted[name]) == 1:
            assert (bits == 0x3F80).all(), "ones in bfloat16"
        else:
            first = int(np.flatnonzero((drawn == bits[0]) & (np.roll(drawn, -1) == bits[1]))[0])
            assert (bits == np.resize(np.roll(drawn, -first), bits.size)).all()
    assert load_model(tmp_path).spec.vocab == TINY_EXPERTS.vocabulary


def tensors_of(file: Path) -> list[tuple[str, Any]]:
    data = file.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    assert max(end for _, end in spans.values()) == len(data) - start
    body = data[start:]
    return [(name, np.frombuffer(body[a:b], np.uint16)) for name, (a, b) in spans.items()]


def test_the_wheel_is_served_and_compared_with_this_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "penstock.whl"
    with zipfile.ZipFile(wheel, "w") as written:
        written.writestr("penstock/__init__.py", "")
        written.writestr("penstock/_native.py", "")
    product.unpack(wheel, tmp_path / "unpacked")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(product.ROOT), "/elsewhere"]))
    monkeypatch.setenv("PENSTOCK_PORT", "1")
    found = product.find(tmp_path / "unpacked")
    assert found is not None
    assert found.origin == "the wheel"
    assert found.path == os.pathsep.join([str(tmp_path / "unpacked"), "/elsewhere"])
    assert "PENSTOCK_PORT" not in found.environment
    assert not found.is_this_tree()
    assert Product("this", "", product.SOURCES / "penstock").is_this_tree()
    served = {"serve-Qwen3-8B": part(**{server.SAME_SOURCES: False})}
    assert "**What was served is not this source tree" in report.report(served, dry=False)
    (tmp_path / "unpacked/penstock/_native.py").write_text("import no_such_library")
    with pytest.raises(RuntimeError, match="the wheel cannot be imported"):
        product.find(tmp_path / "unpacked")


def test_parts_get_the_unpacked_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, seen = tmp_path / "penstock.whl", []
    with zipfile.ZipFile(wheel, "w") as written:
        written.writestr("penstock/__init__.py", "")

    def one(_name: str, _limit: float, _out: Path, words: list[str]) -> dict[str, Any]:
        place = words[words.index("--wheel") + 1]
        seen.append([word for word in words if word != place])
        assert (Path(place) / "penstock/__init__.py").is_file()
        return part()

    monkeypatch.setattr(run, "run_part", one)
    words = ["run.py", "--out", str(tmp_path), "--wheel", str(wheel)]
    monkeypatch.setattr(sys, "argv", [*words, "--minutes", "5"])
    assert run.main() == 0
    assert seen[0] == ["--wheel", "--short"]
    seen.clear()
    monkeypatch.setattr(sys, "argv", [*words, "--dry", "--minutes", "5", "--parts", "machine"])
    assert run.main() == 0
    assert seen == [["--dry", "--wheel"]], "parts that were asked for have all items"


def served(ready: float, rate: float, ttft: float) -> dict[str, Any]:
    row = {"workload": "W3", "output_tokens_per_s": rate, "ttft_ms": 40.0, "tpot_ms": 2.0}
    alone = {**row, "workload": ALONE.name, "median_ttft_ms": ttft}
    starts = [
        {"compiled_kernels": kind, "ready_s": ready, "first_token_s": ready + 0.1}
        for kind in (server.COLD, server.WARM)
    ]
    runs = [{**each, "p99_itl_ms": 9.0} for each in (row, alone)]
    return part(**{server.STARTS: starts, server.RUNS: runs})


def test_the_server_is_compared_with_the_loop_and_with_its_goals() -> None:
    loops = [{"workload": "W3", "output_tokens_per_s": 1000.0, "ttft_ms": 30.0, "tpot_ms": 1.8}]
    found = {
        "serve-Qwen3-8B": served(6.0, 890.0, 9.5),
        "Qwen3-8B": part(**{"closed loops": loops}),
    }
    goals = {row["goal"]: row for row in report.goals(found)}
    rate = goals["Qwen3-8B: server, W3, share of the loop's rate"]
    assert (rate["wanted"], rate["found"], rate["reached"]) == (0.9, 0.89, False)
    start = "Qwen3-8B: server, seconds from its start to the first token, kernels in the cache: "
    assert goals[start + server.COLD]["reached"]
    assert not goals[start + server.WARM]["reached"]
    assert goals["Qwen3-8B: server, ms to the first token of 128"]["reached"]
    text = report.report(found, dry=False)
    assert "|Qwen3-8B|W3|1,000.00|890.00|0.89|30.00|40.00|1.80|2.00|9.00|" in text


def test_the_server_and_the_loop_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    loops = [{"workload": "W3", "output_tokens_per_s": 1234.0}]
    found = {"serve-Qwen3-8B": served(6.0, 890.0, 9.5), "Qwen3-8B": part(**{"closed loops": loops})}
    plot.draw(found, tmp_path / "server.svg")
    drawn = (tmp_path / "server.svg").read_text()
    assert "<!-- 1,234 -->" in drawn
    assert "<!-- 890 -->" in drawn
    assert ALONE.name not in drawn, "the loop has no such load"


def test_published_numbers_stand_beside_ours_on_the_same_chip_alone() -> None:
    steps = [{"rows": 1, "context": 1024, "ms": 13.0}, {"rows": 8, "context": 1024, "ms": 7.0}]
    found = {
        "Qwen3-8B": part(**{"decode steps": steps}),
        "machine": part(device="NVIDIA H100 80GB"),
    }
    (row,) = beside_published(found)
    assert (row["ours"], row["published"], row["by"]) == (13.0, 6.485, "vLLM")
    assert row["better"] == pytest.approx(0.499, abs=1e-3)
    assert "1 rows, 1024 context" in row["what"]
    assert "vLLM's blog, 2026-04-22" in report.report(found, dry=False)
    assert not list(beside_published({**found, "machine": part(device="NVIDIA A100")}))
    assert not list(beside_published({"Qwen3-8B": found["Qwen3-8B"]}))
    assert PUBLISHED.is_file()


def test_a_dry_run_serves_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "serve-Qwen3-8B.json"
    monkeypatch.setattr(server, "find", lambda _: Product("a test", "", tmp_path))
    end = str(time.monotonic() + 60)
    monkeypatch.setattr(sys, "argv", ["server", "serve-Qwen3-8B", str(out), end, "--dry"])
    server.main()
    assert list(json.loads(out.read_text())) == [ABSENT]
    assert server.loads("Qwen3-30B-A3B", False, False) == server.loads("Qwen3-30B-A3B", False, True)
    assert weights.size_of(TINY) > 0
