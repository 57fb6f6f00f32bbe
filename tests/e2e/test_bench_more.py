"""`penstock bench sweep`, `rounds`, `offline` and `latency`, against a modelled engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import eventually, metric
from tests.limits import HANG

pytest.importorskip("penstock._native", reason="the extension is not built: run `make install`")

PLACES = 8
PROFILE = {
    "max_num_seqs": PLACES,
    "timing": {"base_us": 5000.0, "decode_us": [[1, 50.0]], "prompt_us_per_token": 10.0},
}
"""A step costs nearly the same for 1 and for 8 sequences, so throughput rises until the places end.
"""


def run_bench(*words: str | Path) -> tuple[int, str, str]:
    """Exit status, output, and what was said beside it."""
    command = [sys.executable, "-m", "penstock", "bench", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    return done.returncode, done.stdout, done.stderr


def results_in(directory: Path) -> list[dict[str, Any]]:
    """In the order in which they were measured."""
    return [
        json.loads(path.read_text()) for path in sorted(directory.iterdir(), key=os.path.getmtime)
    ]


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[str]:
    """Address of a modelled server with `PROFILE` and an empty cache."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "sim", "--profile", str(profile)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.wait(HANG)


def test_a_sweep_finds_the_knee_where_the_places_end(sim: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    status, output, said = run_bench(
        *(
            "sweep",
            "--base-url",
            sim,
            "--concurrency",
            f"1,{PLACES},{8 * PLACES}",
            "--isl",
            "40",
            "--osl",
            "12",
        ),
        *("--result-dir", results, "--seed", "3", "--label", "modelled"),
    )
    assert status == 0, said
    assert f"\nknee: {PLACES}, " in output
    assert f"penstock bench report {results}" in output
    found = results_in(results)
    assert [result["penstock"]["point"] for result in found] == [1, PLACES, 8 * PLACES]
    assert [result["max_concurrency"] for result in found] == [1, PLACES, 8 * PLACES]
    assert [result["penstock"]["seed"] for result in found] == [3, 4, 5]
    for result in found:
        assert result["completed"] == result["num_prompts"]
        assert set(result["input_lens"]) == {40}
        assert set(result["output_lens"]) == {12}
        assert result["penstock"]["usage"]["cached_tokens"] == 0, "no prompt is met twice"
        assert result["penstock"]["server"] == "modelled"


def test_a_sweep_ends_beyond_an_slo(sim: str) -> None:
    status, output, said = run_bench(
        *(
            "sweep",
            "--base-url",
            sim,
            "--concurrency",
            "1,64,128",
            "--pair",
            "20/10",
            "--slo",
            "p50_ttft_ms:200",
        ),
    )
    assert status == 0, said
    rows = [
        line.split() for line in output.splitlines() if line.split() and line.split()[0].isdigit()
    ]
    assert [row[0] for row in rows] == ["1", "64"]
    assert "beyond: p50_ttft_ms" in output


def test_ctrl_c_leaves_the_points_until_then(sim: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    command = [
        sys.executable,
        "-m",
        "penstock",
        "bench",
        "sweep",
        "--base-url",
        sim,
        "--result-dir",
        str(results),
    ]
    command += [
        "--concurrency",
        "2,4",
        "--pair",
        "20/300",
        "--pair",
        "30/300",
        "--warmup-requests",
        "0",
    ]
    command += ["--requests-per-point", "4", "--rounds", "50"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: results.is_dir() and any(results.glob("*.json")), "a first result")
    with httpx.Client(base_url=sim) as client:
        # Into the second run, which is modelled to last 3 s.
        eventually(lambda: metric(client, "vllm:num_requests_running") > 0, "a second run")
    process.send_signal(signal.SIGINT)
    output, said = process.communicate(timeout=HANG)
    assert process.returncode == 130, said
    assert "partial" in output
    assert [result["penstock"]["partial"] for result in results_in(results)][-1] is True


def test_later_rounds_come_from_the_cache(sim: str, tmp_path: Path) -> None:
    words = (
        "rounds",
        "--base-url",
        sim,
        "--lengths",
        "64,640",
        "--rounds",
        "3",
        "--num-prompts",
        "6",
    )
    results = tmp_path / "results"
    status, output, said = run_bench(*words, "--result-dir", results)
    assert status == 0, said
    cached = [result["penstock"]["usage"]["cached_tokens"] for result in results_in(results)]
    assert cached[0] == cached[3] == 0
    assert all(count > 0 for count in (*cached[1:3], *cached[4:]))
    assert [result["penstock"]["point"] for result in results_in(results)] == [1, 2, 3] * 2
    assert {result["penstock"]["axis"] for result in results_in(results)} == {"round"}
    assert [line.split()[0] for line in output.splitlines()[2:4]] == ["64/1", "640/1"]

    status, output, _ = run_bench(*words, "--baseline", results)
    assert status == 0
    assert "TTFT to baseline" in output
    assert "round 1 met a warm cache" in output


def test_a_length_that_the_server_cannot_take_is_a_failure_among_others(sim: str) -> None:
    words = ("--lengths", "20,20000", "--rounds", "2", "--num-prompts", "3")
    status, output, said = run_bench("rounds", "--base-url", sim, *words)
    assert status == 1, said
    short, long = (line.split() for line in output.splitlines()[2:4])
    assert (short[0], short[-1]) == ("20/1", "0")
    assert long[:2] == ["20000/1", "-"]
    status, output, _ = run_bench(
        "sweep", "--base-url", sim, "--concurrency", "1", "--pair", "20000/1", "--pair", "9/2"
    )
    assert status == 1
    assert "trouble: every warm-up request failed" in output
    assert "9/2 (input/output tokens)\nconcurrency" in output


def test_offline_throughput_of_a_server(sim: str, tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    status, output, said = run_bench(
        *("offline", "--base-url", sim, "--num-prompts", "20", "--random-input-len", "30"),
        *("--random-output-len", "9", "--num-warmups", "2", "--output-json", file),
    )
    assert status == 0, said
    assert output.startswith("Throughput: ")
    kept = json.loads(file.read_text())
    assert (kept["num_requests"], kept["total_num_tokens"]) == (20, 20 * 39)
    assert kept["penstock"]["server"] == sim


def test_latency_of_a_server(sim: str, tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    words = (
        "--batch-size",
        "4",
        "--output-len",
        "10",
        "--num-iters-warmup",
        "1",
        "--num-iters",
        "3",
    )
    status, output, said = run_bench("latency", "--base-url", sim, *words, "--output-json", file)
    assert status == 0, said
    assert output.startswith("Avg latency: ")
    kept = json.loads(file.read_text())
    assert len(kept["latencies"]) == 3
    # Ten steps of 5 ms are modelled; a busy machine adds to that.
    assert min(kept["latencies"]) >= 0.05
    assert sorted(kept["percentiles"]) == ["10", "25", "50", "75", "90", "99"]


def test_offline_and_latency_in_this_process(model_file: Path, tmp_path: Path) -> None:
    engine = ("--model", model_file, "--max-num-seqs", "4", "--kv-cache-memory-bytes", "64MiB")
    status, output, said = run_bench(
        *(
            "offline",
            *engine,
            "--num-prompts",
            "5",
            "--random-input-len",
            "20",
            "--random-output-len",
            "4",
        )
    )
    assert status == 0, said
    assert "Total num prompt tokens:  100\nTotal num output tokens:  20" in output
    file = tmp_path / "latency.json"
    words = (
        "--batch-size",
        "2",
        "--output-len",
        "4",
        "--num-iters-warmup",
        "0",
        "--num-iters",
        "2",
    )
    status, _, said = run_bench("latency", *engine, *words, "--output-json", file)
    assert status == 0, said
    assert len(json.loads(file.read_text())["latencies"]) == 2


def test_a_server_that_is_not_there_is_said() -> None:
    for command in (
        ["sweep", "--concurrency", "1", "--pair", "1/1"],
        ["rounds"],
        ["offline"],
        ["latency"],
    ):
        status, output, said = run_bench(*command, "--port", "1")
        assert (status, output) == (1, "")
        assert "no answer from http://127.0.0.1:1/v1/models" in said
